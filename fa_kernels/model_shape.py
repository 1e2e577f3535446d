"""A language model's published sizes as a value, from data/models/<slug>.json, and its KV cache.

Source: the configuration published with each model; every sheet names it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from fa_kernels.problem import ITEMSIZE, checked_int, dtype_name

MODELS_DIR = Path(__file__).parents[1] / "data" / "models"
_REMEDY = "Restore it with `git checkout -- data/models`"
#: Sizes that must be positive; `window` may be null and `windowed_layers` 0.
_POSITIVE = ("layers", "nheads", "nheads_kv", "head_dim", "context", "experts", "parameters")
MAX_TOKENS, MAX_BATCH = 1 << 20, 4096


@dataclass(frozen=True)
class ModelShape:
    """What decides the size of a model's KV cache, and how much there is to read beside it.

    `nheads` query heads share `nheads_kv` heads of keys and values. `context` is the published
    length in tokens. `windowed_layers` of the `layers` attend only to the last `window` tokens.
    `parameters` counts all weights, those of every expert too.
    """

    slug: str
    name: str
    layers: int
    nheads: int
    nheads_kv: int
    head_dim: int
    context: int
    window: int | None
    windowed_layers: int
    experts: int
    parameters: int
    source: str

    @property
    def group(self) -> int:
        """Query heads for each head of keys and values."""
        return self.nheads // self.nheads_kv

    @property
    def kind(self) -> str:
        """ "MHA", "GQA" or "MQA": multi-head, grouped-query, multi-query attention."""
        if self.group == 1:
            return "MHA"
        return "MQA" if self.nheads_kv == 1 else "GQA"

    def with_kv_heads(self, nheads_kv: int) -> ModelShape:
        """The same model with another number of heads of keys and values.

        Raises:
            ValueError: `nheads` is not a multiple of it.
        """
        if not 1 <= nheads_kv <= self.nheads or self.nheads % nheads_kv:
            raise ValueError(
                f"nheads_kv = {nheads_kv} does not divide the {self.nheads} query heads of "
                f"{self.name}: choose a divisor."
            )
        return replace(self, nheads_kv=nheads_kv)

    def cache_bytes(self, tokens: int, batch: int = 1, dtype: object = "float16") -> int:
        """Bytes of K and V of all layers: 2 · layers · nheads_kv · head_dim · itemsize each token.

        A windowed layer keeps its last `window` tokens only.

        Args:
            tokens: of each sequence, prompt and output together.
            batch: how many sequences.
            dtype: of the cache, one of `ITEMSIZE`.

        Raises:
            ValueError: a size out of range or a dtype that is not known.
        """
        tokens = checked_int("tokens", tokens, 0, MAX_TOKENS, "Choose a length in that range.")
        batch = checked_int("batch", batch, 0, MAX_BATCH, "Choose a batch in that range.")
        kept = min(tokens, self.window) if self.window else tokens
        rows = (self.layers - self.windowed_layers) * tokens + self.windowed_layers * kept
        return 2 * rows * self.nheads_kv * self.head_dim * ITEMSIZE[dtype_name(dtype)] * batch

    def weight_bytes(self, dtype: object = "float16") -> int:
        """Bytes of all weights in `dtype`."""
        return self.parameters * ITEMSIZE[dtype_name(dtype)]


def load_model(path: Path) -> ModelShape:
    """The model described by one sheet.

    Raises:
        ValueError: unreadable, malformed or contradictory; one sentence with file and remedy.
    """
    where = f"data/models/{path.name}"
    try:
        sheet = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read ({error}). {_REMEDY}.") from None
    known = [field.name for field in fields(ModelShape)]
    if not isinstance(sheet, dict) or sorted(sheet) != sorted(known):
        raise ValueError(f"{where} must hold exactly {', '.join(known)}. {_REMEDY}.")
    if fault := _fault(sheet, path.stem):
        raise ValueError(f"{where} {fault}. {_REMEDY}.")
    return ModelShape(**sheet)


def _fault(sheet: dict[str, Any], stem: str) -> str:
    """What is wrong with a sheet, or ""."""
    for key in ("slug", "name", "source"):
        if not isinstance(sheet[key], str) or not sheet[key].strip():
            return f"holds {key} = {sheet[key]!r}: it must be a text"
    if sheet["slug"] != stem:
        return f"says it is {sheet['slug']!r}: slug and file name must agree"
    for key in _POSITIVE:
        if type(sheet[key]) is not int or sheet[key] < 1:
            return f"holds {key} = {sheet[key]!r}: it must be a positive whole number"
    if sheet["nheads"] % sheet["nheads_kv"]:
        return f"gives {sheet['nheads_kv']} KV heads, which do not divide {sheet['nheads']}"
    window, windowed = sheet["window"], sheet["windowed_layers"]
    if window is not None and (type(window) is not int or window < 1):
        return f"holds window = {window!r}: it must be null or a positive whole number"
    if type(windowed) is not int or not 0 <= windowed <= sheet["layers"]:
        return f"holds windowed_layers = {windowed!r}: it must be between 0 and the layers"
    if (window is None) != (windowed == 0):
        return "must give window and windowed_layers together, or neither"
    return ""


_load_once = cache(load_model)


def list_models() -> tuple[str, ...]:
    """The slugs of all sheets, from the fewest parameters to the most."""
    sheets = [_load_once(path) for path in MODELS_DIR.glob("*.json")]
    return tuple(sheet.slug for sheet in sorted(sheets, key=lambda s: (s.parameters, s.slug)))


def model_shape(slug: str) -> ModelShape:
    """The model with this slug, such as "llama-3-8b".

    Raises:
        ValueError: no such sheet, or one that cannot be used.
    """
    known = list_models()
    if slug not in known:
        raise ValueError(f"model = {slug!r} is not known: choose one of {', '.join(known)}.")
    return _load_once(MODELS_DIR / f"{slug}.json")
