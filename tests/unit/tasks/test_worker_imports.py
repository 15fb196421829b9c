"""Imports of Python workers: modules of work import no plans, no engine and no pipeline."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

EPOCHAL = Path(__file__).parents[3] / "epochal"
OPERATORS = EPOCHAL / "operators"
SHARED_PLANS = {"contract", "declared", "distribution"}
FORBIDDEN = ("epochal.operators.contract", "epochal.engine", "epochal.pipeline", "typer", "rich")
PLANS = re.compile(r"epochal\.operators\..*plan")


def modules_of_work() -> list[str]:
    """All modules of ``epochal.tasks``, and those of operators that contain work."""
    operators = (path for path in OPERATORS.rglob("*.py") if path.parent != OPERATORS)
    work = (path for path in operators if path.stem == "work" or path.stem.endswith("_work"))
    paths = sorted([*(EPOCHAL / "tasks").rglob("*.py"), *work])
    return [".".join(path.relative_to(EPOCHAL.parent).with_suffix("").parts) for path in paths]


def test_task_modules_import_no_planning_modules() -> None:
    modules = modules_of_work()
    assert len(modules) > 30
    script = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name.startswith(FORBIDDEN) or PLANS.fullmatch(name)} == set()


def test_task_classes_are_in_task_modules() -> None:
    found = set()
    for path in OPERATORS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Work") and path.stem not in SHARED_PLANS:
                found.add(path.stem)
    assert found == {stem for stem in found if stem == "work" or stem.endswith("_work")}


def test_operator_packages_have_empty_init_modules() -> None:
    for path in OPERATORS.rglob("__init__.py"):
        assert not [node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr)], path
