"""The house's own rules: what is imported is declared, what is locked is pinned, and nothing names a package index."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What declared dependencies are made of, and show: FastAPI, Pydantic and PySpark in this order.
HANDED_THROUGH = {"starlette", "pydantic-core", "py4j"}
SHIPPED = ("epochal", "service", "backends", "connectors", "migrations")


def requirement_name(requirement: str) -> str:
    return re.split(r"[\[<>=;~! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def nodes_of(path: Path, word: str = "") -> Iterator[ast.AST]:
    """A module's syntax, if the module has the word at all: to parse each takes seconds."""
    text = path.read_text()
    if word in text:
        yield from ast.walk(ast.parse(text))


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - {"epochal"} - set(sys.stdlib_module_names)


def shipped_modules() -> list[Path]:
    return sorted(path for top in SHIPPED for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts)


def test_every_import_of_a_shipped_module_is_a_declared_dependency() -> None:
    declared = {requirement_name(item) for item in PROJECT["project"]["dependencies"]}
    extras = {
        requirement_name(item)
        for extra, items in PROJECT["project"]["optional-dependencies"].items()
        if extra != "development"
        for item in items
    }
    development = {requirement_name(item) for item in PROJECT["project"]["optional-dependencies"]["development"]}
    known = packages_distributions()
    undeclared = {}
    for path in shipped_modules():
        allowed = declared | extras | (development if "testing" in path.parts else set())
        for package in imported_packages(path):
            owners = {owner.lower().replace("_", "-") for owner in known.get(package, [package])}
            if not owners & (allowed | HANDED_THROUGH):
                undeclared.setdefault(str(path.relative_to(ROOT)), set()).add(package)
    assert undeclared == {}


@pytest.mark.parametrize(
    ("file", "extra"), [("requirements.lock", "development"), ("requirements-figures.lock", "figures")]
)
def test_every_dependency_is_locked_with_hashes_and_no_index_is_named(file: str, extra: str) -> None:
    lock = (ROOT / file).read_text()
    pinned = {match.lower() for match in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"][extra]
    assert {requirement_name(item) for item in wanted} <= pinned
    assert "://" not in lock
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock.strip()):
        assert "--hash=sha256:" in entry, entry


def test_links_lead_to_the_top_level_folders() -> None:
    for name in ("service", "backends", "connectors", "migrations"):
        link = ROOT / "epochal" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name


def test_the_makefile_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    # Under `make test` this is a make inside a make, which greets its folder.
    command = ["make", "--no-print-directory", "help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == set(phony[1].split())


@pytest.mark.parametrize(
    ("java", "fix"),
    [('openjdk version "1.8.0_352"', "Java 8"), ('openjdk version "11.0.2" 2019-01-15', "Java 11"), (None, "no java")],
)
def test_a_machine_without_the_right_java_is_told_the_fix(tmp_path: Path, java: str | None, fix: str) -> None:
    if java is not None:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{java}' >&2\n")
        program.chmod(0o755)
    done = subprocess.run(
        [ROOT / "tools" / "check-machine", sys.executable],
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert fix in done.stderr
    assert "install" in done.stderr


def test_a_machine_with_what_is_needed_passes_in_silence() -> None:
    done = subprocess.run(
        [ROOT / "tools" / "check-machine", sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SAYS_NOTHING = {"told", "given", "wanted", "made", "looked_at"}
"""As names of values: they tell where a value came from, not what it is (docs/concepts/glossary.md has the words)."""


def test_names_say_what_a_value_is() -> None:
    vague = {}
    for path in shipped_modules():
        names = set()
        for node in nodes_of(path):
            names |= {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
            names |= {node.arg} if isinstance(node, ast.arg) else set()
            names |= {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()
        if found := {name for name in names if name.strip("_").lower() in SAYS_NOTHING}:
            vague[str(path.relative_to(ROOT))] = found
    assert vague == {}


def test_outside_the_catalog_nobody_asks_a_session() -> None:
    """A session is passed on to repositories; that it comes without an import is what import-linter cannot see."""
    asking = set()
    for path in (ROOT / "service").rglob("*.py"):
        if "catalog" in path.parts:
            continue
        for node in nodes_of(path, "session"):
            match node:
                case ast.Attribute(
                    value=ast.Name(id="session") | ast.Attribute(value=ast.Name(id="self"), attr="_session")
                ):
                    asking.add(str(path.relative_to(ROOT)))
    assert asking == set()


def test_commands_change_something_and_what_only_reads_is_a_query() -> None:
    """What a verb would do (``plan``), and what it has to read itself, stays beside it."""
    reading = set()
    for path in (ROOT / "service" / "commands").rglob("*.py"):
        for service in nodes_of(path, "Service"):
            if isinstance(service, ast.ClassDef) and service.name.endswith("Service"):
                names = {verb.name for verb in service.body if isinstance(verb, ast.FunctionDef)}
                reading |= {f"{service.name}.{name}" for name in names & {"get", "page", "list", "all", "find"}}
    assert reading <= {"ImportService.get", "ImportService.page"}, "uploads are files, not rows"


def test_parameters_have_one_form() -> None:
    """From the request to the driver; the client takes any mapping, and the pipeline's own model is an author's."""
    other = set()
    for path in shipped_modules():
        for node in nodes_of(path, "parameters"):
            match node:
                case ast.AnnAssign(target=ast.Name(id="parameters")) | ast.arg(arg="parameters"):
                    said = "" if node.annotation is None else ast.unparse(node.annotation)
                    if re.match(r"(dict|Mapping)\[", said) and "client" not in path.parts:
                        other.add(f"{path.relative_to(ROOT)}: {said}")
    assert other == {"epochal/pipeline/artifact.py: Mapping[str, Any]"} & other


FOR_LIVE_PROCESSES = {"idempotency_keys", "leases", "nodes", "uploads"}


def test_every_table_is_in_backups_or_means_nothing_to_another_incarnation() -> None:
    """Whoever adds a table that says who is alive, or what was answered, leaves it out of backups."""
    from epochal.service.catalog.backups import LEFT_OUT, dumped_tables
    from epochal.service.catalog.models import Base

    assert {*Base.metadata.tables} - {table.name for table in dumped_tables()} == FOR_LIVE_PROCESSES == LEFT_OUT
