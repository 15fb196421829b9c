"""Wrong ways to run an operator and its sink in one task."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

FUSED = "tests/unit/tasks/test_fused_sink_task.py"


@mutant("fused sink task: after a failure of the operator, the sink pre-commits partial output", FUSED)
def _half_an_operator() -> None:
    from epochal.errors import EpochalError
    from epochal.tasks.fused_sink_task import FusedSinkTask, _answer
    from epochal.tasks.operator import HANDLE

    def wrong(_: Any) -> Any:
        def rows(self: FusedSinkTask, batches: Any, answers: list[Any]) -> Any:
            try:
                for batch in self.operator(batches):
                    if batch.num_rows and batch.column(HANDLE).null_count == 0:
                        answers.append(_answer(batch))
                    else:
                        yield batch
            except EpochalError:
                return

        return rows

    change(FusedSinkTask, "_rows", wrong)


@mutant("fused sink task: the operator's handles are lost", FUSED)
def _no_handles_of_the_operator() -> None:
    from epochal.tasks import fused_sink_task

    change(fused_sink_task, "_answer", lambda answer: lambda batch: answer(batch).slice(0, 0))
