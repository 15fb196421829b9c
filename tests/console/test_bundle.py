"""The committed bundle is that of its sources, stays within its budgets, and has no inline scripts."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

from tests.console.bundle import FILES, ROOT, SOURCES, initial_files, need_node

FIRST_LOAD = 100_000
"""Maximum size of the initial load in bytes, compressed."""
EVERYTHING = 350_000
"""Maximum size of all scripts and styles in bytes, minified."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    need_node()
    subprocess.run(["node", "tools/build.mjs", str(tmp_path / "files")], cwd=SOURCES, check=True)
    built, committed = contents(tmp_path / "files"), contents(FILES)
    assert sorted(built) == sorted(committed), "run `make console` and commit the result"
    assert [name for name in built if built[name] != committed[name]] == []


def test_types_are_those_of_the_api(tmp_path: Path) -> None:
    need_node()
    document, types = tmp_path / "openapi.json", tmp_path / "api.ts"
    subprocess.run([sys.executable, "console/tools/openapi.py", str(document)], cwd=ROOT, check=True)
    generate = ["node", "node_modules/openapi-typescript/bin/cli.js", str(document), "--output", str(types)]
    subprocess.run(generate, cwd=SOURCES, check=True, stdout=subprocess.DEVNULL)
    committed = SOURCES / "src" / "generated" / "api.ts"
    assert types.read_text() == committed.read_text(), "run `make console` and commit the result"


def test_sources_have_valid_types_and_pass_their_tests() -> None:
    need_node()
    for script in ("check", "test"):
        done = subprocess.run(["npm", "run", "--silent", script], cwd=SOURCES, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_initial_load_is_small() -> None:
    sizes = {file.name: len(gzip.compress(file.read_bytes())) for file in initial_files()}
    assert len(sizes) >= 5  # with the modules that the first script imports
    assert sum(sizes.values()) <= FIRST_LOAD, sizes


def test_all_scripts_and_styles_are_small() -> None:
    sizes = {file.name: file.stat().st_size for file in FILES.rglob("*") if file.suffix in (".js", ".css")}
    assert sum(sizes.values()) <= EVERYTHING, sizes


def test_a_strict_policy_allows_the_page() -> None:
    page = (FILES / "index.html").read_text()
    assert "<style" not in page and " style=" not in page and " on" not in page.partition("<body>")[2]
    assert page.count("<script") == page.count('<script type="module" src="/console/assets/')


def test_sources_write_no_markup() -> None:
    sources = [file for file in (SOURCES / "src").rglob("*.ts*") if "generated" not in file.parts]
    assert len(sources) > 20
    for file in sources:
        text = file.read_text()
        for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert name not in text, f"{file.name} uses {name}"


def test_licences_of_all_bundled_packages_are_included() -> None:
    text = (FILES / "LICENSES.txt").read_text()
    for package in ("preact", "@preact/signals", "@dagrejs/dagre"):
        assert f"\n{package} " in text
    assert text.count("Permission is hereby granted") >= 4
