"""The committed bundle of the console, and its tools."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "console"
FILES = ROOT / "service" / "console_files"
PACKAGES = SOURCES / "node_modules"


def need_node() -> None:
    """Skip the test, with the reason, unless Node and the packages of the console are installed."""
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    if not (PACKAGES / ".package-lock.json").exists():
        pytest.skip("the packages of the console are not installed: run `make console`")


def initial_files() -> Iterator[Path]:
    """Files that a browser loads before it shows the first page, besides index.html."""
    page = (FILES / "index.html").read_text()
    waiting = [FILES / path for path in re.findall(r'(?:href|src)="/console/([^"]+)"', page)]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file
        if file.suffix == ".js":
            imports = re.findall(r'(?:from|import)\s*"[^"]*?([\w.-]+\.js)"', file.read_text())
            waiting += [file.parent / name for name in imports]
