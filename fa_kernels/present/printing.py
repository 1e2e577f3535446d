"""Pages to PDF by Chromium or Chrome, without a server and without a network."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: True once a page's script has drawn everything.
_READY = "document.documentElement.dataset.faReady === 'true'"
_PRINT = {"printBackground": True, "preferCSSPageSize": True, "transferMode": "ReturnAsStream"}
#: Bytes a message; the pipe to the browser is slow with longer ones.
_CHUNK = 1 << 18


class PrintError(RuntimeError):
    """The browser printed nothing; the message says why."""


class NoBrowserError(PrintError):
    """There is no Chromium and no Chrome here."""


def print_pdfs(pages: Mapping[Path, str], seconds: float = 120) -> dict[Path, Path]:
    """Print pages of this disk, each to a PDF beside it; page -> PDF.

    Args:
        pages: path -> query that is added to its address.
        seconds: how long a page may take to draw.

    Raises:
        NoBrowserError: no browser was found. PrintError: it does not start, or a page is not ready
            in time.
    """
    try:
        from choreographer.errors import BrowserDepsError, BrowserFailedError, ChromeNotFoundError
    except ImportError as error:
        raise NoBrowserError(str(error)) from error
    try:
        # In a thread of its own: where a loop runs already, as in a notebook, none may be begun.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(_print_all(pages, seconds))).result()
    except ChromeNotFoundError as error:
        raise NoBrowserError(str(error)) from error
    except (BrowserDepsError, BrowserFailedError) as error:
        raise PrintError(f"the browser does not start: {error}") from error


async def _print_all(pages: Mapping[Path, str], seconds: float) -> dict[Path, Path]:
    from choreographer import Browser

    written = {}
    async with Browser(headless=True) as browser:
        for page, query in pages.items():
            tab = await browser.create_tab(page.resolve().as_uri() + query)
            await _wait(tab, page, seconds)
            pdf = page.with_suffix(".pdf")
            pdf.write_bytes(await _printed(tab))
            written[page] = pdf
    return written


async def _wait(tab: Any, page: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not (await _said(tab, "Runtime.evaluate", expression=_READY))["result"].get("value"):
        if time.monotonic() > until:
            raise PrintError(f"{page.name} was not drawn within {seconds:.0f} s")
        await asyncio.sleep(0.1)


async def _printed(tab: Any) -> bytes:
    """The PDF, in pieces: whole, it is too long for a single message."""
    handle = (await _said(tab, "Page.printToPDF", **_PRINT))["stream"]
    parts, ended = [], False
    while not ended:
        piece = await _said(tab, "IO.read", handle=handle, size=_CHUNK)
        parts.append(base64.b64decode(piece["data"]))
        ended = piece["eof"]
    return b"".join(parts)


async def _said(tab: Any, command: str, **params: Any) -> dict[str, Any]:
    answer = await tab.send_command(command, params)
    if "error" in answer:
        raise PrintError(f"{command}: {answer['error'].get('message')}")
    return dict(answer["result"])
