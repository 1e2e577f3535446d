"""`python -m fa_kernels doctor`: what is here, what each absence costs, and the remedy."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from fa_kernels.measure import records
from fa_kernels.measure.about import cupy_version, nvidia_smi, version
from fa_kernels.measure.baselines import BASELINES

#: Where kaleido looks for a browser besides the BROWSER_PATH variable.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")


@dataclass(frozen=True)
class Finding:
    """One line of the report: `cost` and `remedy` are empty where nothing is missing."""

    topic: str
    found: str
    cost: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """True if nothing is missing."""
        return not self.cost


def _gpu() -> Finding:
    fields = nvidia_smi("name,memory.total,driver_version")
    if not fields:
        cost = "kernels do not run live; notebooks show NumPy, the models and recorded runs"
        remedy = "run on a machine with an NVIDIA GPU and its driver (nvidia-smi must work)"
        return Finding("GPU and driver", "none", cost, remedy)
    return Finding("GPU and driver", "; ".join(", ".join(gpu) for gpu in fields))


def _cupy() -> Finding:
    found = cupy_version()
    if found is None:
        cost = "no CUDA kernel can be compiled or launched"
        remedy = "`make env` on a machine with an NVIDIA driver, or pip install -e '.[gpu13]'"
        return Finding("CuPy", "not installed", cost, remedy)
    try:
        import cupy

        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # a broken driver raises in many ways
        why = " ".join(str(error).split())[:120]
        cost = "kernels compile but do not run"
        remedy = "install or repair the NVIDIA driver; CUDA 13 wheels need driver 580 or later"
        return Finding("CuPy", f"{found}, sees no GPU ({why})", cost, remedy)
    return Finding("CuPy", f"{found}, sees {devices} GPU(s)")


def _nvrtc() -> Finding:
    try:
        from cupy_backends.cuda.libs import nvrtc

        major, minor = nvrtc.getVersion()
        return Finding("NVRTC (compiler)", f"{major}.{minor}")
    except Exception:  # not installed, or the library behind the binding is not found
        cost = "`make compile-all` and live kernels do not work"
        remedy = "pip install 'cuda-toolkit[nvrtc,cudart,cccl]==13.0.*' (part of .[gpu13])"
        return Finding("NVRTC (compiler)", "not found", cost, remedy)


def _torch() -> Finding:
    found = version("torch")
    if found is None:
        cost = "no torch baselines; torch tensors cannot be passed (recorded baselines still show)"
        return Finding("torch", "not installed", cost, "`make lab TORCH=1`")
    return Finding("torch", found)


def _peers() -> Finding:
    """Whose attention can be measured beside ours; one that is not there is simply left out."""
    here = [name for name, peer in BASELINES.items() if peer.installed]
    missing = {n: p.distribution for n, p in BASELINES.items() if not p.installed}
    found = f"{', '.join(here) or 'none'} can be measured beside our kernels"
    if missing:
        listed = ", ".join(f"{name} ({package})" for name, package in missing.items())
        found += f"; not installed: {listed}: pip install -e '.[peers]'"
    return Finding("Peers", found)


def _notebooks() -> Finding:
    names = ("jupyterlab", "ipywidgets", "anywidget", "plotly")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        cost = "notebooks and widgets do not open"
        return Finding("Notebooks", f"missing {', '.join(missing)}", cost, "`make env`")
    return Finding("Notebooks", ", ".join(f"{name} {version(name)}" for name in names))


def _browser() -> Finding:
    path = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        cost = "figures export to HTML, not to PDF, SVG or PNG"
        remedy = "install Chromium or Chrome (Debian: apt install chromium), or set BROWSER_PATH"
        return Finding("Browser for export", "none", cost, remedy)
    return Finding("Browser for export", os.path.basename(path))


def _runs() -> Finding:
    good, bad = [], []
    for run_id in records.list_runs():
        try:
            run = records.load_run(run_id)
            good.append(f"{run_id} ({run.device}, {len(run.rows)} rows)")
        except records.RecordError as error:
            bad.append(str(error))
    if bad:
        return Finding("Recorded runs", "; ".join(good) or "none", "; ".join(bad), "as said above")
    if not good:
        cost = "runtime panels are empty without a GPU"
        return Finding("Recorded runs", "none", cost, "`git checkout data/measured`")
    return Finding("Recorded runs", "; ".join(good))


def _kernels() -> Finding:
    from fa_kernels.cuda.compile import kernel_names
    from fa_kernels.cuda.verified import unverified

    try:
        pending = unverified()
    except ValueError as error:  # a corrupt record; the sentence names file and remedy
        return Finding("Verified kernels", "none", str(error), "as said above")
    names = ", ".join(name for name in kernel_names() if name not in pending) or "none"
    if pending:
        listed = "; ".join(f"{name}: {why}" for name, why in pending.items())
        cost = f'not chosen by variant="auto": {listed}'
        found = f"{len(kernel_names()) - len(pending)} of {len(kernel_names())}: {names}"
        return Finding("Verified kernels", found, cost, "`make verify` on a GPU")
    return Finding("Verified kernels", names)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _gpu,
    _cupy,
    _nvrtc,
    _torch,
    _peers,
    _notebooks,
    _browser,
    _runs,
    _kernels,
)


def report() -> str:
    """The whole report as text; it never raises for something that is missing."""
    lines = [f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"]
    findings = [check() for check in CHECKS]
    for finding in findings:
        mark = "ok      " if finding.ok else "lacking "
        lines.append(f"{mark}{finding.topic}: {finding.found}")
        if not finding.ok:
            lines.append(f"          costs:  {finding.cost}")
            lines.append(f"          remedy: {finding.remedy}")
    absent = sum(not finding.ok for finding in findings)
    lines.append("Everything is here." if not absent else f"{absent} lacking; the rest works.")
    return "\n".join(lines)
