"""What the widgets of one notebook use: live kernels or NumPy, and which recorded run."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from fa_kernels.cuda import launch
from fa_kernels.cuda.arrays import refuse_without_gpu
from fa_kernels.measure.records import MEASURED_DIR, Run

BACKENDS = ("auto", "cuda", "numpy")


@dataclass(frozen=True)
class Session:
    """A backend ("cuda" or "numpy"), the GPU's name if there is one, and the recorded run in use.

    `notes` are sentences about what is missing; `root` is the folder of recorded runs, None for
    data/measured. In a notebook it shows itself as a banner.
    """

    backend: str
    gpu: str | None = None
    run: Run | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    root: Path | None = field(default=None, repr=False)

    @property
    def live(self) -> str:
        """The first part of the banner: the GPU, or what is used instead."""
        return f"live on {self.gpu}" if self.backend == "cuda" else "NumPy, no GPU in use"

    @property
    def recorded(self) -> str:
        """The second part of the banner: the run, and where it was recorded."""
        if self.run is None:
            return "nothing recorded"
        return f"recorded {self.run.run_id} on {self.run.device}"

    @property
    def banner(self) -> str:
        """One line: "live on <GPU> | recorded <run_id> on <GPU> | model", then the notes."""
        return " ".join([f"{self.live} | {self.recorded} | model", *self.notes])

    def __str__(self) -> str:
        return self.banner

    def _repr_markdown_(self) -> str:
        parts = f"**{self.live}** | **{self.recorded}** | **model**"
        return "\n\n".join([parts, *self.notes])

    def _repr_html_(self) -> str:
        parts = " | ".join(f"<b>{escape(p)}</b>" for p in (self.live, self.recorded, "model"))
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        return f'<div data-fa-widget="session" role="note">{parts}{notes}</div>'


#: The session of this kernel: one notebook, one kernel, one session. Only `session` sets it.
_current: list[Session] = []


def current() -> Session:
    """The session made last, or a default one; widgets use it unless they are given another."""
    return _current[-1] if _current else session()


def in_use(given: Session | None) -> Session:
    """The session that a widget was given, or the current one.

    Raises:
        TypeError: what was given is no session.
    """
    if given is None:
        return current()
    if not isinstance(given, Session):
        raise TypeError(
            f"session = {given!r} is not a session: pass what fa.session() returned, "
            "or leave it out."
        )
    return given


def session(
    backend: str = "auto", run_id: str | None = None, root: Path | str | None = None
) -> Session:
    """Choose what the widgets of this notebook use, and show it as a banner.

    Args:
        backend: "auto" (the GPU if there is one), "cuda" or "numpy".
        run_id: a recorded run of data/measured; default: the newest of the GPU in use, else the
            newest of the GPU that the README shows.
        root: another folder of recorded runs.

    Raises:
        ValueError: unknown backend, or "cuda" where there is no GPU.
        TypeError: `root` is not a path. Recorded data that is missing or corrupt raises nothing,
            nor does a bad `run_id`: the banner says so.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend = {backend!r} is not known: use 'auto', 'cuda' or 'numpy'.")
    if backend == "cuda":
        refuse_without_gpu()
    on_gpu = backend != "numpy" and launch.available()
    if root is not None and not isinstance(root, str | Path):
        raise TypeError(f"root = {root!r} is not a path: pass the folder that holds the runs.")
    folder = None if root is None else Path(root)
    gpu = launch.gpu_name() if on_gpu else None
    run, notes = _recorded(run_id, folder, gpu)
    made = Session("cuda" if on_gpu else "numpy", gpu, run, tuple(notes), folder)
    _current[:] = [made]
    return made


def _recorded(run_id: object, root: Path | None, gpu: str | None) -> tuple[Run | None, list[str]]:
    """The run asked for, or the best to show that can be read; a sentence per one that cannot."""
    # Here, because they load much that `import fa_kernels` need not wait for.
    from fa_kernels.figures.recorded import read_run
    from fa_kernels.figures.shown import runs_to_show

    notes: list[str] = []
    try:
        known = runs_to_show(gpu, root)
    except OSError as error:
        known = []
        notes.append(f"{root or MEASURED_DIR} cannot be read ({error.strerror}).")
    if run_id is not None and not isinstance(run_id, str):
        names = ", ".join(map(repr, known)) or "none"
        return None, [f"run_id = {run_id!r} is not a name: choose a recorded run ({names})."]
    for name in known if run_id is None else [run_id]:
        found = read_run(name, root)
        if isinstance(found, Run):
            return found, notes
        notes.append(found)
    return None, notes or [_nothing_in(root)]


def _nothing_in(root: Path | None) -> str:
    folder, holds = "data/measured" if root is None else str(root), "holds no run"
    if root is not None and not root.is_dir():
        holds = "is not a folder" if root.exists() else "does not exist"
    return f"{folder} {holds}: runtimes are lower bounds of the model."
