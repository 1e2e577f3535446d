"""The command line of `slides` and `handout`; what they need is imported when one of them runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

PAGES = {
    "slides": "two decks that need no kernel and no network, with their PDFs",
    "handout": "the same talk as a text to read, with its PDF",
}


def add_pages(commands: Any) -> None:
    """Add both commands to a parser's subparsers."""
    for name, said in PAGES.items():
        pages = commands.add_parser(name, help=said)
        pages.add_argument("--run", metavar="RUN_ID", help="default: the newest run")
        pages.add_argument("--out", type=Path, help=f"a folder; default: build/{name}")
        pages.add_argument("--no-pdf", action="store_true", help="the HTML alone")


def run_pages(args: argparse.Namespace) -> int:
    """Run one of them; the exit status."""
    try:
        from fa_kernels.present.command import build
    except ModuleNotFoundError as error:
        sys.exit(f"{args.command} needs what `make env` installs: {error}.")
    return build(args.command, args.run, args.out, pdf=not args.no_pdf)
