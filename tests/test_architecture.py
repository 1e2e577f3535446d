"""The frame of the package: imports go one way, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fa_kernels"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: From the bottom up. A module may import its own layer and those before it, never those after.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {"units", "problem", "device", "tiling", "patterns", "block_mask", "masks", "tile_list"}
        | {"packed", "dropout", "extras", "decode_problem"}
        | {"model_shape", "paging", "serving"}
    ),
    frozenset({"reference"}),
    frozenset({"traffic"}),
    frozenset({"cuda"}),
    frozenset({"variant", "variants"}),
    frozenset({"options", "call", "attention", "decode_options", "decoding"}),
    frozenset({"trace"}),
    frozenset({"integrations"}),
    frozenset({"measure"}),
    frozenset({"figures"}),
    frozenset({"session"}),
    frozenset({"widgets"}),
    frozenset({"present"}),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
#: The front door and the command line may see everything.
ABOVE_ALL = {"__init__", "__main__"}

#: Heavy packages, and the only places that may import them (lazily or not).
HOME_OF = {
    "cupy": ("cuda/", "measure/"),
    "cupy_backends": ("cuda/", "measure/"),
    "cupyx": ("cuda/", "measure/"),
    # Peers are torch's own or take its tensors; its profiler names the kernels that they run.
    "torch": (
        "integrations/",
        "measure/baselines.py",
        "measure/generation_run.py",
        "measure/generation_steps.py",
        "measure/kernel_names.py",
        "measure/maps_run.py",
        "measure/packaged.py",
        "measure/torch_tensors.py",
        "measure/training_run.py",
    ),
    "transformers": (
        "integrations/",
        "measure/generation_run.py",
        "measure/maps_run.py",
        "measure/training_run.py",
    ),
    "plotly": ("figures/", "widgets/"),
    "kaleido": ("figures/",),
    "latex2mathml": ("present/",),
    "mistune": ("present/",),
    "anywidget": ("widgets/",),
    "ipywidgets": ("widgets/",),
    "IPython": ("session.py", "widgets/"),
    "voila": ("widgets/app/",),
}
#: What `import fa_kernels` must not load: everything above, and what the notebooks bring along.
HEAVY = {*HOME_OF, "jupyterlab", "matplotlib", "ml_dtypes", "pandas", "scipy", "triton"}

IMPORT_SECONDS, IMPORT_RUNS = 0.3, 20
#: Modules of ours that `import fa_kernels` loads, with room for a few. A larger number is no
#: remedy: it takes its time from every notebook and every command.
IMPORTED_MODULES = 68
#: Of the standard library and of NumPy: each of these takes 5 to 50 ms, and nothing at the front
#: door needs it.
SLOW = {
    *("asyncio", "ctypes.util", "email", "http", "multiprocessing", "sqlite3", "ssl", "tomllib"),
    *("unittest", "urllib.request", "xml", "numpy.f2py", "numpy.random", "numpy.testing"),
}
MAX_LINES = 400


def dotted_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted_name(path) for path in MODULES}


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, inside functions too; type checking included."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - (node.level - 1)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from fa_kernels import tiling` imports a module, `from fa_kernels.tiling import
                # Tiling` a name out of one.
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in NAMES else base


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    return imports(path.read_text(encoding="utf-8"), dotted_name(path), path.name == "__init__.py")


def layer_name(module: str) -> str:
    """ "fa_kernels.cuda.launch" -> "cuda"; the package itself -> "__init__"."""
    return module.split(".")[1] if "." in module else "__init__"


def test_every_module_has_a_layer() -> None:
    unknown = {layer_name(name) for name in NAMES} - RANK.keys() - ABOVE_ALL
    assert not unknown, f"say in LAYERS where these stand in the import order: {sorted(unknown)}"


def test_contributors_read_the_layers_once() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = [part for part in text.split("\n\n") if part.startswith("    units, ")]
    layers = [frozenset(re.split(r",\s+", part.strip())) for part in block.split("->")]
    assert layers == [*LAYERS, frozenset({"notebooks"})]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    here = layer_name(dotted_name(path))
    if here in ABOVE_ALL:
        return
    for line, target in imports_of(path):
        if target.split(".")[0] != "fa_kernels":
            continue
        there = layer_name(target)
        where = f"{path.relative_to(ROOT)}:{line}"
        assert there in RANK, f"{where}: import the module that holds the name, not the package"
        assert RANK[there] <= RANK[here], f"{where}: {here} imports {there}, which stands above it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_only_at_home(path: Path) -> None:
    inside = path.relative_to(PACKAGE).as_posix()
    for line, target in imports_of(path):
        homes = HOME_OF.get(target.split(".")[0])
        assert homes is None or inside.startswith(homes), (
            f"fa_kernels/{inside}:{line} imports {target}, which belongs to {' and '.join(homes)}"
        )


@pytest.mark.parametrize(
    ("source", "module", "is_package", "found"),
    [
        ("import cupy.cuda", "fa_kernels.tiling", False, "cupy.cuda"),
        ("def f():\n    from . import tiling", "fa_kernels.masks", False, "fa_kernels.tiling"),
        ("from .tiling import Tiling", "fa_kernels", True, "fa_kernels.tiling"),
        ("from ..tiling import Tiling", "fa_kernels.cuda.launch", False, "fa_kernels.tiling"),
        ("from .. import tiling", "fa_kernels.cuda", True, "fa_kernels.tiling"),
        ("from fa_kernels import tiling", "fa_kernels.cuda", True, "fa_kernels.tiling"),
        ("from fa_kernels import anything", "fa_kernels.cuda", True, "fa_kernels"),
    ],
)
def test_the_reader_of_imports_sees(source: str, module: str, is_package: bool, found: str) -> None:
    if "tiling" in found:
        assert "fa_kernels.tiling" in NAMES
    assert [name for _, name in imports(source, module, is_package)] == [found]


def test_no_module_without_a_subject() -> None:
    vague = {"utils", "util", "helpers", "helper", "core", "common", "misc"}
    found = [path for path in PACKAGE.rglob("*") if path.stem in vague]
    assert not found, f"name these after what they hold: {found}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_stay_readable(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines: split it by subject"


def run_python(code: str) -> str:
    """What a fresh interpreter prints; it finds the package in the folder it starts in."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_import_loads_numpy_alone() -> None:
    loaded = run_python(
        "import sys, fa_kernels; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ).split()
    assert not HEAVY.intersection(loaded)


def test_import_loads_few_modules() -> None:
    """What the time of the import is made of, and the same on any machine, busy or not.

    Every module of ours costs a millisecond or two, most of it in dataclasses; what only some
    readers need loads on first use (`_LAZY` in fa_kernels/__init__.py).
    """
    loaded = run_python("import sys, fa_kernels; print(*sorted(sys.modules))").split()
    ours = [name for name in loaded if name.split(".")[0] == "fa_kernels"]
    assert len(ours) <= IMPORTED_MODULES, f"{len(ours)} modules of ours: {' '.join(ours)}"
    slow = {name for name in loaded if any(f"{name}.".startswith(f"{one}.") for one in SLOW)}
    before = set(run_python("import sys, numpy; print(*sys.modules)").split())
    assert not slow - before, f"slow modules: {sorted(slow - before)}"


def test_import_reads_no_data() -> None:
    """No run, sheet or label is read before somebody asks for it."""
    code = (
        "import sys; opened = []; sys.addaudithook(lambda event, args: "
        "opened.append(str(args[0])) if event == 'open' else None); "
        "import fa_kernels; print(*opened, sep='\\n')"
    )
    opened = [name for name in run_python(code).splitlines() if name.startswith(str(ROOT))]
    # A module's own file is opened where its .pyc is stale or cannot be kept.
    assert opened
    read = {name for name in opened if not name.endswith(".py") and "__pycache__" not in name}
    assert not read, f"read at import: {sorted(read)}"


def test_import_is_quick() -> None:
    """CPU time of `import numpy; import fa_kernels` in a fresh interpreter, the least of some.

    CPU time and the least, because other work on the machine only ever adds; where it adds too
    much, more interpreters are asked. NumPy is the greater part, and it is counted: a reader waits
    for both. The two are told apart, so that a failure says whose time it was. On a slow machine
    NumPy's own time is the measure.
    """
    code = (
        "from time import process_time as now; t0 = now(); import numpy; t1 = now(); "
        "import fa_kernels; t2 = now(); print(t1 - t0, t2 - t1)"
    )
    run_python(code)  # the first run reads the disk and writes the .pyc files
    runs: list[list[float]] = []
    while len(runs) < IMPORT_RUNS and not any(sum(run) < allowed(*run) for run in runs):
        runs.append([float(word) for word in run_python(code).split()])
    of_numpy, of_ours = min(runs, key=lambda run: sum(run) / allowed(*run))
    said = f"numpy {of_numpy:.3f} s + fa_kernels {of_ours:.3f} s"
    print(f"import {said}")
    assert of_numpy + of_ours < allowed(of_numpy, of_ours), said


def allowed(of_numpy: float, of_ours: float) -> float:
    """Seconds that both imports may take where NumPy's takes this long."""
    return max(IMPORT_SECONDS, 3.5 * of_numpy)


# -- the tree --------------------------------------------------------------------------------------

#: A path that exists on one person's machine only.
SOMEBODYS_PATH = re.compile(r"""(?<![\w.~/}-])/(?:home|root|work|workspace|Users|mnt)/(?=\w)""")


def tracked_text_files() -> list[Path]:
    """What git knows or would add; every file of the tree where there is no git (a tarball)."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed if name)
    binary = {".png", ".woff2", ".pdf", ".gz", ".npz"}
    return [path for path in paths if path.is_file() and path.suffix not in binary]


def test_no_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked_text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SOMEBODYS_PATH.search(line)
    ]
    assert not found, "\n".join(found)
