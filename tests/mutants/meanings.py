"""Wrong ways to compare the meaning of state between two versions."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

EDITS = "tests/spark/test_meanings.py"
EQUAL_TO_BATCH = "tests/spark/property/test_edits_equal_batch.py"


@mutant("upgrades: expressions are not compared", EDITS)
def _types_alone() -> None:
    from epochal.state.table import StateTable

    change(StateTable, "model_dump_json", lambda dump: lambda self: dump(self.without_definition()))


@mutant("upgrades: filters before an operator are not compared", EQUAL_TO_BATCH)
def _filters_ignored() -> None:
    from epochal.state import meaning

    change(meaning, "conjuncts", lambda _: lambda condition, columns: frozenset())


@mutant("upgrades: columns are compared by name, not by expression", EQUAL_TO_BATCH)
def _by_name() -> None:
    from epochal.state import meaning

    def wrong(right: Any) -> Any:
        return lambda self, branch_columns: self if branch_columns else right(self, branch_columns)

    change(meaning.Branch, "with_columns", wrong)


@mutant("upgrades: a column is identified by the last operator, not by the expressions before it", EDITS)
def _not_passed_on() -> None:
    from epochal.pipeline import state_definitions

    change(state_definitions._Walk, "_output", lambda _: lambda self, node: iter(()))


@mutant("upgrades: a different merge function can be accepted", EDITS)
def _function_accepted() -> None:
    from epochal.state import meaning

    change(meaning, "function_of", lambda _: lambda aggregate: "same")
