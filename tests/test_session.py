"""The session's banner: what is live, what is recorded, and a sentence for all that is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fa_kernels.cuda import launch

# `fa_kernels.session` is a function on the package and a module in it: ask for the module's names.
from fa_kernels.session import Session, current, session
from tests.figures.synthetic import RUN_ID, write_run


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available", lambda: False)
    monkeypatch.setattr("fa_kernels.cuda.arrays.available", lambda: False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path, head_dims=(64,), seqlens=(512,))
    return tmp_path


@pytest.mark.usefixtures("no_gpu")
def test_newest_run_without_a_gpu(root: Path) -> None:
    write_run(root, "20250101-h200-old", head_dims=(64,), seqlens=(512,))
    made = session(root=root)
    assert made.backend == "numpy"
    assert made.gpu is None
    assert made.run is not None
    assert made.run.run_id == RUN_ID
    assert made.banner == f"NumPy, no GPU in use | recorded {RUN_ID} on NVIDIA H200 | model"


def test_a_gpu_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(launch, "gpu_name", lambda: "NVIDIA H200")
    assert session(root=root).banner.startswith("live on NVIDIA H200 | recorded")
    assert session("numpy", root=root).backend == "numpy"


@pytest.mark.usefixtures("no_gpu")
def test_no_run_at_all(tmp_path: Path) -> None:
    made = session(root=tmp_path / "nowhere")
    assert made.run is None
    assert "nothing recorded" in made.banner
    assert "data/measured holds no run" in made.banner


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}', "\x00"])
def test_a_corrupt_run_is_a_sentence_and_the_next_one_serves(root: Path, text: str) -> None:
    broken = root / "20270101-h200-broken"
    broken.mkdir()
    (broken / "run.json").write_text(text, encoding="utf-8")
    made = session(root=root)
    assert made.run is not None
    assert made.run.run_id == RUN_ID
    assert "20270101-h200-broken/run.json" in made.banner
    assert "restore it" in made.banner


@pytest.mark.usefixtures("no_gpu")
def test_an_unknown_run_is_a_sentence(root: Path) -> None:
    made = session(run_id="20200101-none-such", root=root)
    assert made.run is None
    assert f"recorded: {RUN_ID}" in made.banner


@pytest.mark.usefixtures("no_gpu")
def test_bad_backends_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="'rocm' is not known: use 'auto', 'cuda' or 'numpy'"):
        session("rocm", root=root)
    with pytest.raises(ValueError, match="needs CuPy and a CUDA GPU"):
        session("cuda", root=root)


@pytest.mark.usefixtures("no_gpu")
def test_the_last_session_is_the_current_one(root: Path) -> None:
    made = session(root=root)
    assert current() is made


def test_banners_escape_what_they_show() -> None:
    made = Session("cuda", "<b>GPU</b>", None, ("a < b",))
    assert "&lt;b&gt;GPU" in made._repr_html_()
    assert "a &lt; b" in made._repr_html_()
    assert made._repr_markdown_().startswith("**live on <b>GPU</b>**")


def test_a_session_loads_neither_plotly_nor_widgets() -> None:
    import subprocess

    code = "import sys, fa_kernels as fa; fa.session('numpy'); print(*sys.modules)"
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert not {"plotly", "ipywidgets", "anywidget"}.intersection(done.stdout.split())
