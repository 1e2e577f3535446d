"""The session's banner: what is live, what is recorded, and a sentence for all that is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.cuda import launch

# `fa_kernels.session` is a function on the package and a module in it: ask for the module's names.
from fa_kernels.session import Session, current, in_use, session
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
    made = session(root=tmp_path)
    assert made.run is None
    assert "nothing recorded" in made.banner
    assert f"{tmp_path} holds no run: runtimes are lower bounds of the model." in made.banner
    assert "data/measured" not in made.banner


@pytest.mark.usefixtures("no_gpu")
def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    made = session(root=tmp_path / "nowhere")
    assert f"{tmp_path / 'nowhere'} does not exist" in made.banner
    assert "data/measured" not in made.banner
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert f"{tmp_path / 'file'} is not a folder" in session(root=tmp_path / "file").banner


@pytest.mark.usefixtures("no_gpu")
def test_a_root_may_be_text(root: Path) -> None:
    made = session(root=str(root))
    assert made.run is not None
    assert made.root == root
    with pytest.raises(TypeError, match="root = 5 is not a path: pass the folder"):
        session(root=5)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}', "\x00", "[" * 200_000])
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
def test_a_folder_in_place_of_a_file_is_a_sentence(root: Path) -> None:
    (root / "20270101-h200-folder" / "run.json").mkdir(parents=True)
    made = session(root=root)
    assert made.run is not None
    assert made.run.run_id == RUN_ID
    assert "20270101-h200-folder" in made.banner


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("run_id", [5, [], {}, 1.5, b"x", Path("x")])
def test_a_run_id_that_is_no_text_is_a_sentence(root: Path, run_id: Any) -> None:
    made = session(run_id=run_id, root=root)
    assert made.run is None
    assert f"run_id = {run_id!r} is not a name" in made.banner
    assert RUN_ID in made.banner


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("run_id", ["", ".", "..", "\0", "a/b", "x" * 5000])
def test_a_strange_run_id_is_a_sentence(root: Path, run_id: str) -> None:
    made = session(run_id=run_id, root=root)
    assert made.run is None
    assert len(made.notes) == 1


def test_a_session_in_use_is_given_or_current(root: Path) -> None:
    made = session("numpy", root=root)
    other = Session("numpy")
    assert in_use(None) is made
    assert in_use(other) is other
    with pytest.raises(TypeError, match="session = 'x' is not a session"):
        in_use("x")  # type: ignore[arg-type]


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
