"""Wrong checks of row-wise verbs."""

from __future__ import annotations

from tests.mutants.mutant import change, mutant

ROW_WISE = "tests/spark/test_row_wise.py"


@mutant("row-wise verbs: a join of the stream with its own epoch is accepted", ROW_WISE)
def _self_joins() -> None:
    from epochal.pipeline.row_wise import _Search

    change(_Search, "_joined", lambda joined: lambda self, node, of_children: iter(()))


@mutant("row-wise verbs: window functions are accepted", ROW_WISE)
def _window_functions() -> None:
    from epochal.pipeline import row_wise

    change(row_wise, "ROW_WISE", lambda names: names | {"Window"})
    change(row_wise, "_ADVICE", lambda advice: {name: text for name, text in advice.items() if name != "Window"})


@mutant("row-wise verbs: a subquery over the stream is accepted", ROW_WISE)
def _subqueries() -> None:
    from epochal.pipeline.row_wise import _Search

    def without(faults: object) -> object:
        def found(self: _Search, node: object) -> object:
            node.subqueries.clear()  # type: ignore[attr-defined]
            return faults(self, node)  # type: ignore[operator]

        return found

    change(_Search, "faults", without)


@mutant("row-wise verbs: sinks are checked, but not operators", ROW_WISE)
def _only_sinks() -> None:
    from epochal.pipeline import row_wise
    from epochal.pipeline.graph import SinkNode

    change(row_wise, "_is_end", lambda end: lambda node: isinstance(node, SinkNode))


@mutant("row-wise verbs: every verb after a verb with per_epoch=True is accepted", ROW_WISE)
def _per_epoch_forever() -> None:
    from epochal.pipeline import row_wise

    def skipped(verbs_above: object) -> object:
        def above(graph: object, id: int) -> object:
            verbs = verbs_above(graph, id)  # type: ignore[operator]
            return [] if any(verb.per_epoch for verb in verbs) else verbs

        return above

    change(row_wise, "_verbs_above", skipped)
