"""Every text the code asks for is in labels/en.toml, and every text there is asked for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fa_kernels.widgets import text

WIDGETS = Path(text.__file__).parent


def keys() -> set[str]:
    sections = tomllib.loads((text.LABELS_DIR / "en.toml").read_text(encoding="utf-8"))
    return {key for section in sections.values() for key in section if key != "metrics"}


def test_no_text_is_left_over() -> None:
    # Figures have words handed to them by the widgets that show them.
    paths = [*WIDGETS.glob("*.py"), *(WIDGETS.parent / "figures").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    quoted = set(re.findall(r"""["']([a-z0-9_]+)["']""", code))
    derived = {f"{n}_{k}" for n in ("seqlen", "head_dim", "sram") for k in ("description", "unit")}
    derived |= {f"{n}_{k}" for n in ("source", "missing") for k in ("counted", "hardware")}
    derived |= {"source_hardware_bare"}
    assert keys() <= quoted | derived


def test_unknown_language() -> None:
    with pytest.raises(ValueError, match="language = 'xx' has no labels: use one of en"):
        text.labels("run", "xx")
