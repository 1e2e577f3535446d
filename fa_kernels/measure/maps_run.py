"""Train a small language model on text that comes with Python, and keep some of its attention."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.measure.about import describe_run, version
from fa_kernels.measure.maps import causal_probabilities, write_maps


@dataclass(frozen=True)
class Recipe:
    """A GPT-2 over bytes, and how it is trained.

    It stops where the loss of the held-out text has not fallen for `patience` looks at it, one
    every `look_every` steps, or when time is up, and keeps the weights of the best look.
    """

    layers: int = 4
    heads: int = 4
    width: int = 256
    seqlen: int = 512
    batch: int = 64
    dropout: float = 0.1
    learning_rate: float = 1e-3
    warm_up: int = 100
    look_every: int = 50
    patience: int = 6
    #: Heads whose q, k and v are kept: spread over all by how far they look.
    kept_heads: int = 8


#: Part of the text that is held out, its end.
HELD_OUT = 0.1
VOCABULARY = 256
SECONDS = 60.0
METHOD = (
    "GPT2LMHeadModel of transformers over bytes, AdamW, random windows of the text without its "
    "end; q, k and v are those of the first window of the held-out end, from the weights with the "
    "least held-out loss; heads sorted by the mean distance from a query to the keys it attends, "
    "every n-th kept"
)


@dataclass
class Progress:
    """How far a training came; losses in nats per byte, of the best look."""

    steps: int = 0
    seconds: float = 0.0
    loss: float = math.inf
    held_out_loss: float = math.inf


def text_of_python() -> bytes:
    """The help texts of Python's own `help()`, which every installation has."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values()).encode("utf-8", "replace")


def split(text: bytes) -> tuple[bytes, bytes]:
    """(for training, held out)."""
    at = int(len(text) * (1 - HELD_OUT))
    return text[:at], text[at:]


def _model(recipe: Recipe, device: str, implementation: str) -> Any:
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=recipe.seqlen, n_embd=recipe.width,
        n_layer=recipe.layers, n_head=recipe.heads, attn_pdrop=0.0, embd_pdrop=recipe.dropout,
        resid_pdrop=recipe.dropout, bos_token_id=0, eos_token_id=0, use_cache=False,
        attn_implementation=implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.GPT2LMHeadModel(config)


class _Trainer:
    """A model, its optimiser and its two texts."""

    def __init__(self, recipe: Recipe, text: bytes, device: str, implementation: str) -> None:
        import torch

        self.recipe, self.device = recipe, device
        self.model = _model(recipe, device, implementation)
        self.texts = [self._tensor(part) for part in split(text)]
        self._random = torch.Generator().manual_seed(0)
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
        )

    def _tensor(self, text: bytes) -> Any:
        import torch

        values = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
        return values.to(self.device)

    def _loss(self, tokens: Any) -> Any:
        import torch

        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            return self.model(input_ids=tokens, labels=tokens).loss

    def step(self, number: int) -> Any:
        """One step on random windows; its loss as a tensor, for which nobody waits."""
        import torch

        recipe, text = self.recipe, self.texts[0]
        starts = torch.randint(len(text) - recipe.seqlen, (recipe.batch, 1), generator=self._random)
        tokens = text[(starts + torch.arange(recipe.seqlen)).to(self.device)]
        for group in self._optimiser.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (number + 1) / recipe.warm_up)
        loss = self._loss(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def held_out_loss(self) -> float:
        """Of whole windows from the start of the held-out text, at most a batch."""
        import torch

        n, text = self.recipe.seqlen, self.texts[1]
        count = max(1, min(self.recipe.batch, len(text) // n))
        self.model.eval()
        with torch.no_grad():
            loss = float(self._loss(text[: count * n].reshape(count, n)))
        self.model.train()
        return loss

    def inputs_of_attention(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v of every layer and head, each (layers * heads, seqlen, head_dim) float32."""
        import torch

        recipe, found = self.recipe, []
        blocks = self.model.transformer.h
        hooks = [
            block.attn.c_attn.register_forward_hook(lambda _, __, out: found.append(out.float()))
            for block in blocks
        ]
        self.model.eval()
        with torch.no_grad():
            self.model(input_ids=self.texts[1][None, : recipe.seqlen])
        for hook in hooks:
            hook.remove()
        joined = torch.cat(found).reshape(recipe.layers, recipe.seqlen, 3, recipe.heads, -1)
        q, k, v = joined.permute(2, 0, 3, 1, 4).flatten(1, 2).cpu().numpy()
        return q, k, v


def train(trainer: _Trainer, seconds: float, say: Callable[[str], None] = print) -> Progress:
    """Train until the held-out loss no longer falls, or time is up; the best weights are loaded."""
    start, best, recipe = time.monotonic(), Progress(), trainer.recipe
    weights, since, number = copy.deepcopy(trainer.model.state_dict()), 0, 0
    while since < recipe.patience and time.monotonic() - start < seconds:
        losses = [trainer.step(number + i) for i in range(recipe.look_every)]
        loss = float(sum(losses)) / len(losses)
        number += recipe.look_every
        held_out, since = trainer.held_out_loss(), since + 1
        taken = time.monotonic() - start
        say(f"{number} steps, {taken:.0f} s: loss {loss:.3f}, held out {held_out:.3f}")
        if held_out < best.held_out_loss:
            best, since = Progress(number, taken, loss, held_out), 0
            weights = copy.deepcopy(trainer.model.state_dict())
    trainer.model.load_state_dict(weights)
    return best


def spread_heads(q: np.ndarray, k: np.ndarray, count: int) -> list[int]:
    """`count` of the heads, every n-th by mean distance from a query to what it attends."""
    p, places = causal_probabilities(q, k), np.arange(q.shape[1])
    distance = (p * np.maximum(places[:, None] - places, 0)).sum(axis=-1).mean(axis=-1)
    order = np.argsort(distance, kind="stable")
    count = min(count, len(order))
    return sorted(int(order[i * len(order) // count]) for i in range(count))


def record_maps(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
    *,
    recipe: Recipe | None = None,
    device: str = "cuda",
    implementation: str = "fa_kernels",
    describe: Callable[[str, str], dict[str, Any]] | None = None,
) -> tuple[Path, bool]:
    """Train and write data/maps/<date>-<gpu>-<label>.npz; its path, and True.

    Args:
        root: folder of maps.
        seconds: the most to train; default `SECONDS`.
        implementation: of attention, as transformers knows it; ours is registered.
        others: as `backward_run.record_backward`; there is nothing to resume.

    Raises:
        FileExistsError: one of that name is there.
        ModuleNotFoundError: torch or transformers is not installed.
    """
    import transformers  # noqa: F401  before anything takes time

    from fa_kernels.integrations.transformers import register

    register()
    recipe, text = recipe or Recipe(), text_of_python()
    about = (describe or describe_run)(command, METHOD)
    name = f"{about.pop('run_id')}{label}"
    trainer = _Trainer(recipe, text, device, implementation)
    progress = train(trainer, SECONDS if seconds is None else seconds, say)
    q, k, v = trainer.inputs_of_attention()
    kept = spread_heads(q, k, recipe.kept_heads)
    said = {
        **about, "commit": commit or about["commit"], "torch": version("torch"),
        "transformers": version("transformers"), "model": asdict(recipe),
        "text": {"source": "pydoc_data.topics", "bytes": len(text), "held_out": HELD_OUT},
        "training": asdict(progress), "attention": implementation,
    }  # fmt: skip
    said.pop("schema", None)
    layers, heads = [i // recipe.heads for i in kept], [i % recipe.heads for i in kept]
    tokens = split(text)[1][: recipe.seqlen]
    return write_maps(root, name, said, q[kept], k[kept], v[kept], layers, heads, tokens), True
