"""A Voila server of the app, started as `make app` does, and its one page."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.browser.lab import ROOT, START_SECONDS, free_port


@contextlib.contextmanager
def running_app(private: Path) -> Iterator[str]:
    """The app's address while it is served, on a free port; its log is in `private`."""
    port, log = free_port(), private / "voila.log"
    command = [sys.executable, "-m", "fa_kernels.widgets.app", "--no-browser", f"--port={port}"]
    command += ["--Voila.ip=127.0.0.1", "--Voila.port_retries=0"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "IPYTHONDIR": str(private / "ipython"),
    }
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=ROOT)
        try:
            _wait_until_up(process, log)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], log: Path) -> None:
    """Read the log: a GET, to see whether the server answers, would run the notebook."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if "is running at" in log.read_text(encoding="utf-8"):
            return
        time.sleep(0.1)
    raise RuntimeError(f"Voila did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")
