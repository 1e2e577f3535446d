"""A kernel's file as a reader sees it: its header by subject, its lines, what it includes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.cuda.compile import KERNEL_DIR

_SUBJECT = re.compile(
    r"(Source|Tensors|Launch|SRAM|HBM|Numerics|Architectures|Changed from [^:]+|Limits and verdict)"
    r"[^:.]*: "
)
_INCLUDE = re.compile(r'^#include "([\w.]+)"$')


@dataclass(frozen=True)
class KernelFile:
    """One file of the kernel folder: its lines, and its header's paragraphs by subject.

    The first paragraph, which says in a sentence what the kernel is, has the subject "".
    """

    name: str
    lines: tuple[str, ...]
    header: tuple[tuple[str, str], ...]

    @property
    def includes(self) -> tuple[str, ...]:
        """Names of the headers of ours that it includes, in order."""
        return tuple(match[1] for line in self.lines if (match := _INCLUDE.match(line)))

    @property
    def changed_from(self) -> tuple[str, str]:
        """("03", what this rung changes); ("", "") where its header says nothing of it."""
        for subject, text in self.header:
            if subject.startswith("Changed from "):
                return subject.removeprefix("Changed from "), text
        return "", ""

    def said(self, subject: str) -> str:
        """A paragraph of the header, "" if there is none."""
        return dict(self.header).get(subject, "")

    def find(self, start: str, end: str) -> range | None:
        """Lines, counted from 0, from the first that holds `start` to the next that holds `end`."""
        first = next((i for i, line in enumerate(self.lines) if start in line), None)
        if first is None:
            return None
        last = next((i for i in range(first, len(self.lines)) if end in self.lines[i]), None)
        return None if last is None else range(first, last + 1)


def read_kernel(name: str) -> KernelFile:
    """A file of the kernel folder, "04_flash_q_outer.cu" or "tile.cuh".

    Raises:
        ValueError: there is no such file; the message lists those there are.
    """
    known = sorted(path.name for path in KERNEL_DIR.glob("*.cu*"))
    if name not in known:
        raise ValueError(f"there is no kernel file {name!r}: use one of {', '.join(known)}.")
    lines = (KERNEL_DIR / name).read_text(encoding="utf-8").splitlines()
    return KernelFile(name, tuple(lines), _header(lines))


def files_of(kernel: str) -> list[KernelFile]:
    """The file of a kernel, "04_flash_q_outer", then every header of ours it is built from."""
    found: dict[str, KernelFile] = {}
    names = [f"{kernel}.cu"]
    while names:
        name = names.pop(0)
        if name not in found:
            found[name] = read_kernel(name)
            names += found[name].includes
    return list(found.values())


def _header(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for line in lines:
        if not line.startswith("//"):
            break
        text = line.removeprefix("//")
        match = _SUBJECT.match(text[1:]) if not text.startswith("   ") else None
        if match:
            found.append((match[1], text[1 + match.end() :]))
        elif text.strip():
            subject, before = found.pop() if found else ("", "")
            found.append((subject, f"{before} {text.strip()}".strip()))
    return tuple(found)
