"""Queries, keys and values of a trained language model on disk: data/maps/<id>.npz and <id>.json.

From them anybody computes the attention maps, exactly or under a block mask. The .json says what
was trained, on what, how far, and has the hash of the .npz.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAPS_DIR = Path(__file__).parents[2] / "data" / "maps"
SCHEMA_VERSION = 1
#: What a file must say about itself.
ABOUT_KEYS = (
    "schema", "command", "commit", "dirty", "started", "device", "python", "torch", "text",
    "model", "training", "sha256",
)  # fmt: skip
_REMEDY = "restore it with `git checkout data/maps`, or record again under another name"


class MapsError(ValueError):
    """A file of data/maps that cannot be read; says what is wrong and the remedy."""


@dataclass(frozen=True)
class AttentionMaps:
    """Causal attention of some heads over one held-out sequence.

    `q`, `k`, `v`: float32 (heads, seqlen, head_dim), as fp16 holds them. `layers`, `heads`: where
    each is in the model, from 0. `tokens`: the bytes of the sequence.
    """

    name: str
    about: Mapping[str, Any]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    tokens: bytes

    @property
    def seqlen(self) -> int:
        """N."""
        return int(self.q.shape[1])

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """P of every head in float64, (heads, seqlen, seqlen); the future is 0."""
        return causal_probabilities(self.q, self.k)


def causal_probabilities(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Causal softmax(q kᵀ / sqrt(d)), float64 (heads, N, N), of (heads, N, head_dim)."""
    seqlen, head_dim = q.shape[-2:]
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64)
    scores = np.where(np.tri(seqlen, dtype=bool), scores / math.sqrt(head_dim), -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def write_maps(
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    layers: list[int],
    heads: list[int],
    tokens: bytes,
) -> Path:
    """Write both files; the path of the .npz. Arguments as `AttentionMaps`.

    Raises:
        FileExistsError: one of that name is there: they are not overwritten.
    """
    path = folder / f"{name}.npz"
    if path.exists() or path.with_suffix(".json").exists():
        raise FileExistsError(f"{path} exists and is not overwritten: choose another --label.")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, q=q.astype(np.float16), k=k.astype(np.float16), v=v.astype(np.float16),
        layers=np.array(layers, np.int64), heads=np.array(heads, np.int64),
        tokens=np.frombuffer(tokens, np.uint8),
    )  # fmt: skip
    said = {"schema": SCHEMA_VERSION, **about, "sha256": _digest(path)}
    text = json.dumps(said, allow_nan=False, indent=1) + "\n"
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    return path


def list_maps(folder: Path | None = None) -> list[str]:
    """Names of what is recorded, newest first."""
    return sorted((path.stem for path in (folder or MAPS_DIR).glob("*.npz")), reverse=True)


@functools.lru_cache(maxsize=4)
def load_maps(name: str, folder: Path | None = None) -> AttentionMaps:
    """Read and check one.

    Raises:
        MapsError: missing, corrupt or changed since it was written.
    """
    path = (folder or MAPS_DIR) / f"{name}.npz"
    try:
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        missing = [key for key in ABOUT_KEYS if key not in about]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
        if about["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {about['schema']} is not {SCHEMA_VERSION}")
        if about["sha256"] != _digest(path):
            raise ValueError("it was changed after it was written")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        return _checked(name, about, arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise MapsError(f"data/maps/{name}.npz cannot be read ({error}): {_REMEDY}.") from error


def _checked(name: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> AttentionMaps:
    q, k, v = (arrays[key].astype(np.float32) for key in ("q", "k", "v"))
    count = len(arrays["layers"])
    if not (q.ndim == 3 and q.shape == k.shape == v.shape and len(q) == count):
        raise ValueError(f"shapes {q.shape}, {k.shape}, {v.shape} of {count} heads")
    if len(arrays["heads"]) != count or len(arrays["tokens"]) != q.shape[1]:
        raise ValueError("heads or tokens do not belong to q")
    if not all(np.isfinite(x).all() for x in (q, k, v)):
        raise ValueError("a value that is not finite")
    layers, heads = (tuple(arrays[key].tolist()) for key in ("layers", "heads"))
    return AttentionMaps(name, about, q, k, v, layers, heads, arrays["tokens"].tobytes())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
