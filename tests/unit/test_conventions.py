"""Rules of this repository: dependencies, lock files, the Makefile, names, sessions, commands, backups."""

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
# Exposed by declared dependencies: FastAPI, Pydantic and PySpark, in this order.
RE_EXPORTED = {"starlette", "pydantic-core", "py4j"}
SHIPPED = ("epochal", "service", "backends", "connectors", "migrations")


def requirement_name(requirement: str) -> str:
    return re.split(r"[\[<>=;~! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def nodes_of(path: Path, word: str = "") -> Iterator[ast.AST]:
    """Syntax nodes of a module that contains the word; parsing every module would take seconds."""
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
            if not owners & (allowed | RE_EXPORTED):
                undeclared.setdefault(str(path.relative_to(ROOT)), set()).add(package)
    assert undeclared == {}


@pytest.mark.parametrize(
    ("file", "extra"), [("requirements.lock", "development"), ("requirements-figures.lock", "figures")]
)
def test_every_dependency_is_locked_with_hashes_and_no_index_is_named(file: str, extra: str) -> None:
    lock = (ROOT / file).read_text()
    pinned = {match.lower() for match in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    required = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"][extra]
    assert {requirement_name(item) for item in required} <= pinned
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
    # Under `make test` a nested make would print its directory.
    command = ["make", "--no-print-directory", "help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == set(phony[1].split())


@pytest.mark.parametrize(
    ("java", "fix"),
    [
        ('openjdk version "1.8.0_352"', "Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', "Java 11"),
        (None, "java was not found"),
    ],
)
def test_check_machine_names_the_fix_for_an_unsupported_java(tmp_path: Path, java: str | None, fix: str) -> None:
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


def test_check_machine_prints_nothing_on_a_suitable_machine() -> None:
    done = subprocess.run(
        [ROOT / "tools" / "check-machine", sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


VAGUE_NAMES = {"told", "given", "wanted", "made", "looked_at"}
"""Names that tell the origin of a value, not its meaning; docs/concepts/glossary.md lists the terms."""


def test_shipped_modules_use_no_vague_names() -> None:
    vague = {}
    for path in shipped_modules():
        names = set()
        for node in nodes_of(path):
            names |= {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
            names |= {node.arg} if isinstance(node, ast.arg) else set()
            names |= {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()
        if found := {name for name in names if name.strip("_").lower() in VAGUE_NAMES}:
            vague[str(path.relative_to(ROOT))] = found
    assert vague == {}


def test_only_the_catalog_package_queries_sessions() -> None:
    """Sessions are passed to repositories without an import, so import-linter cannot check this."""
    querying = set()
    for path in (ROOT / "service").rglob("*.py"):
        if "catalog" in path.parts:
            continue
        for node in nodes_of(path, "session"):
            match node:
                case ast.Attribute(
                    value=ast.Name(id="session") | ast.Attribute(value=ast.Name(id="self"), attr="_session")
                ):
                    querying.add(str(path.relative_to(ROOT)))
    assert querying == set()


def test_command_services_have_no_read_methods() -> None:
    """Previews (``plan``) and the reads that a command needs itself stay in its service."""
    reading = set()
    for path in (ROOT / "service" / "commands").rglob("*.py"):
        for service in nodes_of(path, "Service"):
            if isinstance(service, ast.ClassDef) and service.name.endswith("Service"):
                names = {verb.name for verb in service.body if isinstance(verb, ast.FunctionDef)}
                reading |= {f"{service.name}.{name}" for name in names & {"get", "page", "list", "all", "find"}}
    assert reading <= {"ImportService.get", "ImportService.page"}, "uploads are files, not rows"


def test_parameters_have_one_type() -> None:
    """From the request to the driver, except in the client and in the author's pipeline."""
    mappings = set()
    for path in shipped_modules():
        for node in nodes_of(path, "parameters"):
            match node:
                case ast.AnnAssign(target=ast.Name(id="parameters")) | ast.arg(arg="parameters"):
                    annotation = "" if node.annotation is None else ast.unparse(node.annotation)
                    if re.match(r"(dict|Mapping)\[", annotation) and "client" not in path.parts:
                        mappings.add(f"{path.relative_to(ROOT)}: {annotation}")
    assert mappings == {"epochal/pipeline/artifact.py: Mapping[str, Any]"} & mappings


NOT_IN_BACKUPS = {"idempotency_keys", "leases", "nodes", "session_links", "sessions", "uploads"}


def test_every_table_is_in_backups_or_listed_as_excluded() -> None:
    """Tables about running processes, sent answers and logins are excluded: they are invalid after a restore."""
    from epochal.service.catalog.backups import LEFT_OUT, dumped_tables
    from epochal.service.catalog.models import Base

    assert {*Base.metadata.tables} - {table.name for table in dumped_tables()} == NOT_IN_BACKUPS == LEFT_OUT
