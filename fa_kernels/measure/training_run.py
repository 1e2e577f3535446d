"""Training steps of GPT-2 small on record: its attention by our kernels and by torch's."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fa_kernels.cuda.launch import gpu_arch
from fa_kernels.measure import memory, records, timing
from fa_kernels.measure.point import Contender, row_of, whole_model
from fa_kernels.measure.progress import measure_each
from fa_kernels.measure.special_run import open_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import GIB
from fa_kernels.variants import fastest

#: GPT-2 small (124 million parameters): heads and head_dim of its attention, its layers.
NHEADS, HEAD_DIM, LAYERS = 12, 64, 12
#: Its vocabulary, and where it is trained.
VOCABULARY, DEVICE = 50257, "cuda"
#: Tokens of a step, as whole sequences of N.
TOKENS = 32768
SEQLENS = (1024, 4096)
#: Dropout of the attention: GPT-2's own, and none as newer models are trained.
DROPOUTS = (0.0, 0.1)
STEPS, WARM_UP = 10, 3
METHOD = (
    "GPT2LMHeadModel of transformers with random weights, bf16 autocast, AdamW (fused), random "
    "tokens; a step is forward, backward, optimiser and zero_grad; wall clock between two "
    "synchronisations, the models taking turns step by step in one process; median with 20th and "
    "80th percentile; memory: the most bytes asked of torch's allocator during a step"
)


@dataclass(frozen=True)
class Way:
    """Whose attention a model is trained with: its name in transformers, and rows it gives."""

    provider: str
    variant: str
    implementation: str
    sdpa_backend: str | None = None


PEERS = (
    Way("torch_flash", "sdpa", "sdpa", "FLASH_ATTENTION"),
    Way("torch_cudnn", "sdpa", "sdpa", "CUDNN_ATTENTION"),
)


def our_way() -> Way:
    """With the fastest of our kernels that this GPU runs."""
    return Way(records.OURS, fastest(gpu_arch()), "fa_kernels")


def problems() -> list[AttentionProblem]:
    """One attention call of each model that is trained."""
    return [
        AttentionProblem(
            TOKENS // n, NHEADS, n, n, HEAD_DIM, "bfloat16", "bottom_right",
            dropout_p=p, seed=0 if p else None,
        )
        for n in SEQLENS
        for p in DROPOUTS
    ]  # fmt: skip


def _model(way: Way, problem: AttentionProblem) -> Any:
    import torch
    import transformers

    config = transformers.GPT2Config(
        n_positions=problem.seqlen_q, attn_pdrop=problem.dropout_p,
        attn_implementation=way.implementation,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return transformers.GPT2LMHeadModel(config).train()


class _Trainer:
    """A model with its optimiser, whose attention goes one way."""

    def __init__(self, way: Way, problem: AttentionProblem, tokens: Any) -> None:
        import torch
        from torch.nn.attention import SDPBackend

        self.way, self.tokens, self.model = way, tokens, _model(way, problem)
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self._backend = way.sdpa_backend and getattr(SDPBackend, way.sdpa_backend)
        self.peak_bytes, self.error, self.samples = 0, 0.0, list[float]()

    def _loss(self, tokens: Any) -> Any:
        import torch
        from torch.nn.attention import sdpa_kernel

        with (
            sdpa_kernel([self._backend]) if self._backend else contextlib.nullcontext(),
            torch.autocast(DEVICE, dtype=torch.bfloat16),
        ):
            return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss

    def step(self) -> None:
        """Forward, backward, optimiser."""
        self._loss(self.tokens).backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def gradient(self) -> Any:
        """Of the first layer's projection to q, k and v, for one sequence without dropout: what
        every layer's backward pass has gone into."""
        self.model.eval()
        self._loss(self.tokens[:1]).backward()
        found = self.model.transformer.h[0].attn.c_attn.weight.grad.double()
        self._optimiser.zero_grad(set_to_none=True)
        self.model.train()
        return found


def _true_gradient(problem: AttentionProblem, tokens: Any) -> Any:
    """`_Trainer.gradient` in float64, attention written out."""
    model = _model(Way("torch_eager", "eager", "eager"), problem).double().eval()
    model(input_ids=tokens[:1], labels=tokens[:1], use_cache=False).loss.backward()
    return model.transformer.h[0].attn.c_attn.weight.grad


def measure_training(
    problem: AttentionProblem, ways: Sequence[Way], steps: int = STEPS
) -> Iterator[records.Row]:
    """Rows of every way at one problem: time of a step in ms, and its most memory.

    `max_abs_err` is the largest error of a gradient of the first layer against the same model in
    float64. A way whose error is more than a twentieth of the largest element, ten times what
    bf16 makes of it, is recorded as failed and not timed.
    """
    import torch

    torch.manual_seed(1)
    shape = (problem.batch, problem.seqlen_q)
    tokens = torch.randint(0, VOCABULARY, shape, device=DEVICE)
    truth = _true_gradient(problem, tokens)
    largest = float(truth.abs().max())
    trainers: list[_Trainer] = []
    for way in ways:
        contender = _contender(way)
        try:
            trainer = _Trainer(way, problem, tokens)
            trainer.error = float((trainer.gradient() - truth).abs().max())
            for _ in range(WARM_UP):
                trainer.step()
        except Exception as refusal:  # a peer may refuse in many ways; the run must go on
            yield _failed(problem, contender, f"{type(refusal).__name__}: {refusal}")
            continue
        if not trainer.error <= largest / 20:
            why = f"wrong: error {trainer.error:.3g} of a gradient of at most {largest:.3g}"
            yield _failed(problem, contender, why)
            continue
        _, trainer.peak_bytes = memory.peak_extra_bytes(trainer.step)
        trainers.append(trainer)
    for _ in range(steps):
        for trainer in trainers:
            torch.cuda.synchronize()
            start = time.perf_counter()
            trainer.step()
            torch.cuda.synchronize()
            trainer.samples.append((time.perf_counter() - start) * 1e3)
    for trainer in trainers:
        yield from _rows(problem, trainer)
    trainers.clear()
    gc.collect()
    memory.free_pools()


def _rows(problem: AttentionProblem, trainer: _Trainer) -> Iterator[records.Row]:
    contender, latency = _contender(trainer.way), timing.summarise(trainer.samples)
    detail = f"a step of {LAYERS} layers, {problem.batch} sequences of {problem.seqlen_q} tokens"
    if problem.dropout_p:
        detail += "; the gradient was checked without dropout"
    common: dict[str, Any] = {"error": trainer.error, "detail": detail}
    at: dict[str, Any] = {"pass_": "step", "dropout_p": problem.dropout_p}
    row = row_of(problem, contender, "latency_ms", value=latency.median, **common)
    yield replace(row, **at, p20=latency.p20, p80=latency.p80, n=latency.n)
    row = row_of(problem, contender, "extra_mem_bytes", value=trainer.peak_bytes, **common)
    yield replace(row, **at)


def _contender(way: Way) -> Contender:
    return whole_model(way.provider, way.variant, "is trained")


def _failed(problem: AttentionProblem, contender: Contender, why: str) -> records.Row:
    detail = " ".join(why.split())
    row = row_of(problem, contender, "latency_ms", status="failed", detail=detail)
    return replace(row, pass_="step", dropout_p=problem.dropout_p)


def record_training(
    root: Path,
    label: str,
    command: str,
    resume: str | None = None,
    commit: str | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path, bool]:
    """Measure every problem into a run of kind "training"; its folder, and whether it is whole.

    Arguments and errors as `backward_run.record_backward`.

    Raises:
        ModuleNotFoundError: torch or transformers is not installed.
    """
    import transformers  # noqa: F401  before there is a folder

    from fa_kernels.integrations.transformers import register

    ours = our_way()
    register(variant=ours.variant)
    start = time.monotonic()
    folder, rows = open_run("training", label, command, root, resume, commit, method=METHOD)
    done = {(row.seqlen_q, row.dropout_p) for row in rows}
    work = [p for p in problems() if (p.seqlen_q, p.dropout_p) not in done]
    say(f"{len(rows)} rows recorded, {len(work)} problems to do")

    def measure(problem: AttentionProblem) -> list[records.Row]:
        return list(measure_training(problem, (ours, *PEERS)))

    return folder, measure_each(folder, work, measure, _summary, start, seconds, say)


def _summary(rows: Sequence[records.Row]) -> str:
    parts = []
    for row in rows:
        if row.status != "ok":
            parts.append(f"{row.series} {row.status}: {row.detail}")
        elif row.metric == "latency_ms" and row.median is not None:
            parts.append(f"{row.series} {row.median:.1f} ms")
        elif row.median is not None:
            parts.append(f"{row.series} {row.median / GIB:.2f} GiB")
    return ", ".join(parts)
