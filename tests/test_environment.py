"""pyproject.toml, constraints.txt and environment.yml say the same: names, bounds, pins."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
CONDA: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))

#: conda-forge's name -> PyPI's name, where they differ.
PYPI_NAME = {"pytorch": "torch", "python-kaleido": "kaleido"}
#: Only for machines other than the tested one, or pinned by torch and CuPy themselves.
UNPINNED = re.compile(r"nvidia-.*|cuda-.*|cupy-cuda12x|fa3-fwd|flash-attn-4|flashattention-lab")


def extra(name: str) -> list[Requirement]:
    return [Requirement(line) for line in PROJECT["optional-dependencies"][name]]


def every_requirement() -> list[Requirement]:
    base = [Requirement(line) for line in PROJECT["dependencies"]]
    return base + [wanted for name in PROJECT["optional-dependencies"] for wanted in extra(name)]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for pin in found:
        assert re.fullmatch(r"==[^*,+]+", str(pin.specifier)), f"{pin} is not one public release"
    names = [canonicalize_name(pin.name) for pin in found]
    assert len(set(names)) == len(names), "a package is pinned twice"
    return {name: Version(str(pin.specifier)[2:]) for name, pin in zip(names, found, strict=True)}


def conda_packages() -> dict[str, SpecifierSet]:
    """PyPI name -> bounds of what conda itself installs (a single "=" is conda's ==x.*)."""
    found = {}
    for line in CONDA["dependencies"]:
        if isinstance(line, str):
            name, bounds = re.fullmatch(r"([\w-]+)\s*(.*)", line).groups()  # type: ignore[union-attr]
            bounds = re.sub(r"(?<![=<>!~])=(?!=)(.*)", r"==\1.*", bounds)
            found[PYPI_NAME.get(name, name)] = SpecifierSet(bounds)
    return found


def pip_lines() -> list[str]:
    (found,) = (line["pip"] for line in CONDA["dependencies"] if isinstance(line, dict))
    return found


@pytest.mark.parametrize("wanted", every_requirement(), ids=str)
def test_every_dependency_is_pinned_within_its_bounds(wanted: Requirement) -> None:
    name = canonicalize_name(wanted.name)
    if UNPINNED.fullmatch(name):
        assert name not in pins()
        return
    assert name in pins(), f"add {name} to constraints.txt: make pins"
    assert wanted.specifier.contains(pins()[name])


def test_constraints_leave_cuda_to_torch_and_cupy() -> None:
    assert not [name for name in pins() if name.startswith(("nvidia-", "cuda-"))]


@pytest.mark.parametrize("name", ["numpy", "pytest", "ruff"])
def test_the_pins_are_what_runs_here(name: str) -> None:
    assert Version(version(name)) == pins()[name], "this environment is older than constraints.txt"


def test_conda_bounds_are_those_of_pyproject() -> None:
    bounds: dict[str, SpecifierSet] = {
        canonicalize_name(wanted.name): wanted.specifier for wanted in every_requirement()
    }
    bounds["python"] = SpecifierSet(PROJECT["requires-python"])
    for name, bound in conda_packages().items():
        if name != "pip":
            assert bound == bounds[name], (
                f"environment.yml: {name}{bound}, pyproject: {bounds[name]}"
            )


def test_conda_installs_the_lab_through_pip_with_the_constraints() -> None:
    assert pip_lines() == ["-c constraints.txt", "-e .[lab]"]
    assert {"python", "pip", "numpy", "torch"} <= conda_packages().keys()
    # cupy has no macOS build on conda-forge, kaleido comes with the lab extra.
    assert "cupy" not in conda_packages()


def test_conda_takes_packages_from_conda_forge_alone() -> None:
    assert CONDA["name"] == PROJECT["name"]
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]


def test_base_install_is_numpy_alone() -> None:
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["numpy"]


@pytest.mark.parametrize("gpu", ["gpu12", "gpu13"])
def test_gpu_extras_do_not_meet(gpu: str) -> None:
    """Two CuPy packages in one environment overwrite each other's files."""
    cupy = [wanted.name for wanted in extra(gpu) if wanted.name.startswith("cupy")]
    assert cupy == [f"cupy-cuda{gpu[-2:]}x"]
    others = [name for name in ("lab", "test", "torch") for name in map(str, extra(name))]
    assert not [name for name in others if "cupy" in name]


def test_makefile_knows_only_extras_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    stamps = re.findall(r"call join_extras,([a-z]+) \$\(\w+\) (\S+?)\)\)?", text)
    named = {word for pair in stamps for word in pair if word.isalpha()} | {"gpu12", "gpu13"}
    assert named == {"lab", "test", "torch", "gpu12", "gpu13"}
    assert named <= PROJECT["optional-dependencies"].keys()


def test_citation_and_licence_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License")
