"""Wrong ways to commit, to recover and to write to the catalog."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

SIMULATION = "tests/simulation --ignore=tests/simulation/test_control_planes.py"
OWN_NUMBERS = "tests/unit/property/test_operators_scaled.py"
WIDE_AGGREGATES = "tests/spark/property/test_wide_aggregates.py -k code_is_generated"


@mutant("engine: a sink commits before the manifest is decided", SIMULATION)
def _commit_before_manifest() -> None:
    from epochal.engine.coordinator import Coordinator

    def early(decide: Any) -> Any:
        def wrong(self: Any, scope: Any, manifest: Any, reference: Any) -> None:
            for name, sink in self.current.program.participants.sinks.items():
                sink.commit(scope, manifest.sinks[name].handles)
            decide(self, scope, manifest, reference)

        return wrong

    change(Coordinator, "_decide", early)


@mutant("engine: recovery does not redo decided commits", SIMULATION)
def _no_redo() -> None:
    from epochal.engine.recovery import Recovery

    change(Recovery, "_finish", lambda _: lambda self, point: None)


@mutant("engine: undecided epochs are not aborted", SIMULATION)
def _no_abort() -> None:
    from epochal.engine.recovery import Recovery

    change(Recovery, "_abort_undecided", lambda _: lambda self, point: None)


@mutant("engine: an unknown outcome counts as a failure", SIMULATION)
def _guessed_outcome() -> None:
    from epochal.engine.coordinator import Coordinator
    from epochal.errors import Conflict, OutcomeUnknown

    def guess(_: Any) -> Any:
        def wrong(self: Any, scope: Any, manifest: Any, reference: Any) -> None:
            try:
                self.catalog.prepare_epoch(scope.epoch, scope.parent, reference, manifest.counts)
            except OutcomeUnknown:
                self.store.delete(reference.path)
                raise Conflict("The epoch has failed.") from None

        return wrong

    change(Coordinator, "_decide", guess)


@mutant("engine: a slice is accepted before its epoch is decided", SIMULATION)
def _accepted_early() -> None:
    from epochal.engine.coordinator import Coordinator

    def early(run: Any) -> Any:
        def wrong(self: Any, plan: Any) -> Any:
            for name, slice in plan.slices.items():
                self.current.program.participants.sources[name].accept(slice)
            return run(self, plan)

        return wrong

    change(Coordinator, "_run_and_collect", early)


@mutant("engine: recovery loses due times and records in flight", SIMULATION)
def _forgotten_snapshot() -> None:
    from epochal.engine.recovery import Recovery

    def forgetful(find: Any) -> Any:
        def wrong(self: Any, point: Any) -> Any:
            position = find(self, point)
            position.snapshot = None
            return position

        return wrong

    change(Recovery, "_find", forgetful)


@mutant("engine: epoch time goes backwards with the clock", "tests/simulation/test_due_and_in_flight.py")
def _falling_epoch_time() -> None:
    from epochal.engine import coordinator

    change(coordinator, "conditions_after", lambda after: lambda graph, parent, opening: after(graph, None, opening))


@mutant("engine: missing and duplicate handles are accepted", "tests/unit/test_engine_epoch.py")
def _uncounted_handles() -> None:
    from epochal.engine import job

    def trusting(_: Any) -> Any:
        return lambda operator, handles, parallelism: tuple(sorted(handles, key=lambda handle: handle.subtask))

    change(job, "_complete", trusting)


@mutant("engine: the sweep of lost tasks' files deletes decided deltas", SIMULATION)
def _swept_winners() -> None:
    from epochal.engine import recovery, retention

    def all_of_it(sweep: Any) -> Any:
        def wrong(store: Any, participants: Any, scope: Any, manifest: Any) -> None:
            sweep(store, participants, scope, manifest.model_copy(update={"deltas": ()}))

        return wrong

    change(retention, "sweep_losers", all_of_it)
    change(recovery, "sweep_losers", all_of_it)


@mutant("catalog: a fenced attempt can still write", "tests/service/test_catalog.py")
def _no_fence() -> None:
    from sqlalchemy import bindparam, update

    from epochal.service.catalog import epoch_statements
    from epochal.service.catalog.models import Branch

    unguarded = update(Branch).where(Branch.id == bindparam("the_branch"))
    returned = [Branch.application, Branch.head_branch, Branch.head_epoch, Branch.parent_epoch]
    change(epoch_statements, "OWN", lambda _: unguarded.values(owned=True).returning(*returned))


@mutant("engine: one wide operator disables code generation for narrow ones", WIDE_AGGREGATES)
def _interpreted_beside_wide() -> None:
    from epochal.engine.session import COMPILED_AGGREGATES
    from epochal.engine.spark_runner import SparkRunner

    def any_of_them(runner: Any) -> bool:
        return any(plan.aggregated_columns > COMPILED_AGGREGATES for plan in runner.operators.values())

    change(SparkRunner, "is_wide", lambda _: property(any_of_them))


@mutant("engine: the setting of a wide epoch stays in the session", WIDE_AGGREGATES)
def _setting_stays() -> None:
    from contextlib import contextmanager

    from epochal.engine import spark_runner

    @contextmanager
    def stays(spark: Any) -> Any:
        spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        yield

    change(spark_runner, "interpreted", lambda _: stays)


@mutant("engine: an operator has the number of subtasks of the application", OWN_NUMBERS)
def _number_of_the_application() -> None:
    from epochal.engine.program import Program

    def usual(self: Any) -> Any:
        return dict.fromkeys(self.participants.operators, self.configuration.parallelism)

    change(Program, "subtasks", lambda _: property(usual))


@mutant("engine: a straggler moves whenever it is slow", "tests/unit/test_stragglers.py")
def _moved_repeatedly() -> None:
    from epochal.engine.placement import Slots

    def forgetful(begin: Any) -> Any:
        def wrong(self: Any, computed: Any, required: Any) -> None:
            self._moved.clear()
            begin(self, computed, required)

        return wrong

    change(Slots, "_begin_move", forgetful)


@mutant("engine: answers are merged by another number of subtasks than they are given", OWN_NUMBERS)
def _merged_by_another_number() -> None:
    from epochal.operators.process.partial_plan import MergeAnswersOperator

    change(MergeAnswersOperator, "scaled_as", lambda _: property(lambda self: self.name))


@mutant(
    "engine: an aggregate with a number of its own relies on Spark's shuffle",
    "tests/spark/operators/test_own_numbers.py",
)
def _shuffled_by_another_number() -> None:
    from epochal.operators.distribution import Subtasks

    def dividing(self: Any) -> bool:
        return self.slots is None and self.max_parallelism % self.parallelism == 0

    change(Subtasks, "match_spark_shuffle", lambda _: property(dividing))


@mutant(
    "engine: rows are aggregated before their shuffle whatever the latest epoch had",
    "tests/spark/test_combined_rows.py",
)
def _always_combined() -> None:
    from epochal.engine.operator_subtasks import OperatorSubtasks

    def never_forgetting(compare: Any) -> Any:
        def compared(self: Any, answers: Any) -> None:
            before = set(self._combined)
            compare(self, answers)
            self._combined |= before

        return compared

    change(OperatorSubtasks, "_compare_rows", never_forgetting)


@mutant("engine: the time of a window in a sink is its end", "tests/spark/test_straight_sinks.py")
def _time_of_the_end() -> None:
    from epochal.operators.windows import plan
    from epochal.tasks.task_output import PassthroughColumn

    def at_the_end(made: Any) -> Any:
        def columns(names: Any, place: int | None = None) -> Any:
            return made(names, place) | {"window_time": PassthroughColumn("window_end")}

        return columns

    change(plan, "with_window_time", at_the_end)


@mutant("engine: a sink reads a filtered operator without the filter", "tests/spark/test_straight_sinks.py")
def _without_the_filter() -> None:
    from epochal.engine import straight_sinks
    from epochal.pipeline import verbs

    def picked(pick: Any) -> Any:
        return lambda verb, columns: columns if verb.function.func is verbs.where else pick(verb, columns)

    change(straight_sinks, "_picked", picked)
