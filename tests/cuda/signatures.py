"""The parameters of a kernel as its source declares them, with the options that are on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fa_kernels.cuda.compile import KERNEL_DIR

#: Parameters that an option adds: the file that defines them and the macro that chooses. Of the
#: definitions in that file the first belongs to 1, the next to 2; the macro is 0 when off.
OPTIONAL = {
    "BLOCK_MASK_PARAMS": ("block_mask.cuh", "BLOCK_SPARSE"),
    "TRACE_PARAMS": ("trace.cuh", "TRACE"),
    "TRAFFIC_PARAM": ("io.cuh", "COUNT_TRAFFIC"),
    "MASK_PARAMS": ("score.cuh", "MASK"),
    "BIAS_PARAMS": ("score.cuh", "BIAS"),
    "DROPOUT_PARAMS": ("score.cuh", "DROPOUT"),
    "PACKED_PARAMS": ("score.cuh", "PACKED"),
    "PAGE_PARAMS": ("decode.cuh", "PAGED"),
    "WINDOW_PARAMS": ("decode.cuh", "WINDOW"),
}
#: Which stands for others, and with a block mask for one parameter more.
QUEUE = "QUEUE_PARAMS"
EXTRAS = ("EXTRAS_PARAMS", "MASK_PARAMS BIAS_PARAMS DROPOUT_PARAMS")


def definition(name: str, value: int) -> str:
    """What the preprocessor puts in place of `name` where its macro is `value`."""
    header, _ = OPTIONAL[name]
    text = (KERNEL_DIR / header).read_text(encoding="utf-8")
    found = re.findall(rf"#define {name} ((?:.*\\\n)*.*)", text)
    assert found, f"{header} does not define {name}"
    if not value:
        return ""
    return found[min(value, len(found)) - 1].replace("\\\n", " ")


def parameters(kernel: str, entry: str, macros: Mapping[str, int]) -> list[tuple[str, str]]:
    """(type, name) of every parameter of an entry."""
    source = (KERNEL_DIR / f"{kernel}.cu").read_text(encoding="utf-8")
    found = re.search(rf"\b{entry}\((.*?)\) \{{", source, re.DOTALL)
    assert found is not None
    queue = "BLOCK_MASK_PARAMS" + (", int heads_in_section" if macros.get("BLOCK_SPARSE") else "")
    text = found[1].replace(*EXTRAS).replace(QUEUE, queue)
    for name, (_, macro) in OPTIONAL.items():
        text = re.sub(rf"\b{name}\b", lambda _: definition(name, macros.get(macro, 0)), text)  # noqa: B023
    declared = [" ".join(part.split()) for part in text.split(",")]
    pairs = [re.fullmatch(r"(?:const )?(.*?)(\*?) ?(\*?)(\w+)", part) for part in declared]
    return [(m[1].strip() + m[2] + m[3], m[4]) for m in pairs if m is not None]
