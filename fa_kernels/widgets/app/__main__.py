"""`python -m fa_kernels.widgets.app`: serve notebooks/app with Voila; options go on to Voila."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "notebooks" / "app" / "app.ipynb"
#: Voila looks for templates in the Jupyter path: ours asks no content network for its icons.
SHARE = Path(__file__).parent / "share"
#: Other packages' extensions of JupyterLab may not load in Voila, and would cost time.
EXTENSIONS = (
    "@voila-dashboards/widgets-manager8",
    "@jupyter-widgets/jupyterlab-manager",
    "anywidget",
)
OPTIONS = (
    "--template=presenter",
    "--show_tracebacks=True",
    *(f"--VoilaConfiguration.extension_allowlist={name}" for name in EXTENSIONS),
    # A page that is left behind asks for the end of its kernel, which the server refuses (no XSRF
    # cookie was ever set, Voila 0.5.13): kernels without a page end after five minutes.
    "--MappingKernelManager.cull_interval=60",
    "--MappingKernelManager.cull_idle_timeout=300",
)


def main(options: list[str]) -> None:
    """Serve the app until it is interrupted."""
    paths = [str(SHARE), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    try:
        from voila.app import main as serve
    except ModuleNotFoundError:
        sys.exit("Voila is not installed: run `make app`, or pip install -e '.[lab]'.")
    serve([str(NOTEBOOK), *OPTIONS, *options])


if __name__ == "__main__":
    main(sys.argv[1:])
