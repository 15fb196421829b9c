"""The structure of the product's packages: no import cycles, unique module names, no modules for one importer."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("epochal", "service", "backends", "connectors", "migrations")
FAMILIES = ("epochal.operators", "epochal.backends", "epochal.connectors")
"""Packages with a subpackage for each family or system, whose modules have the same roles."""
REGISTRIES = ("epochal.cli.main", "epochal.service.app", "epochal.service.internal_app", "epochal.service.composition")
"""Modules that import each command, router or background service once."""
LONGEST = 400
SINGLE_IMPORTERS = Path(__file__).with_name("single_importers.toml")


@cache
def modules() -> Mapping[str, Path]:
    """Paths of the product's modules by dotted name. The top-level folders are packages of ``epochal``."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            if not any(parent.is_symlink() for parent in path.parents):
                found[relative if package == "epochal" else f"epochal.{relative}"] = path
    return found


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Modules that each module imports, also in functions and under ``TYPE_CHECKING``."""
    return {name: frozenset(imported(name, path)) - {name} for name, path in modules().items()}


def imported(name: str, path: Path) -> Iterator[str]:
    known = modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name in known)
            if any(name not in known for name in names):
                yield str(node.module)


def layer(name: str) -> str:
    """The package within which module names are unambiguous: ``epochal.engine``, ``epochal.service.runtime``."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["service"] else 2])


def test_imports_are_acyclic_also_in_functions_and_for_types() -> None:
    try:
        tuple(TopologicalSorter(imports()).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_module_names_are_unambiguous_within_a_package() -> None:
    names: dict[str, Counter[str]] = defaultdict(Counter)
    for name, path in modules().items():
        if path.name not in ("__init__.py", "__main__.py") and layer(name) not in FAMILIES:
            names[layer(name)][name.rpartition(".")[2]] += 1
    twice = {package: [name for name, number in found.items() if number > 1] for package, found in names.items()}
    assert {package: found for package, found in twice.items() if found} == {}


def test_only_the_operator_has_a_module_named_entries() -> None:
    assert [name for name in modules() if name.endswith(".entries")] == ["epochal.operators.entries"]


def test_a_module_with_one_importer_is_merged_or_listed_with_a_reason() -> None:
    """Not required for exports of an ``__init__``, imports of registries, and modules that would exceed 400 lines."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports().items():
        for target in targets:
            importers[target].add(name)
    single = {name for name in modules() if len(importers[name]) == 1 and is_mergeable(name, *importers[name])}
    listed = tomllib.loads(SINGLE_IMPORTERS.read_text())
    assert all(reason.strip() for reason in listed.values())
    assert (sorted(single - listed.keys()), sorted(listed.keys() - single)) == ([], [])


def is_mergeable(name: str, importer: str) -> bool:
    is_export = importer == name.rpartition(".")[0] or importer.endswith("__main__")
    if modules()[name].name == "__init__.py" or is_export or importer in REGISTRIES or name.endswith("work"):
        return False
    return lines(name) + lines(importer) <= LONGEST and layer(name) == layer(importer)


def lines(name: str) -> int:
    return modules()[name].read_text().count("\n")
