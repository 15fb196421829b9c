"""Programs without a pipeline, for tests of engine parts that only use the current version."""

from __future__ import annotations

from typing import Any

from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.job import Answers, EpochPlan, EpochRunner, Participants
from epochal.engine.planner import PipelinePlan
from epochal.engine.program import CurrentProgram, Program
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import DeltaFile

DEFAULTS, NO_PARTICIPANTS = Configuration(), Participants()


class EmptyEpochs(EpochRunner):
    """Runs epochs of an empty pipeline."""

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        return Answers(operators={}, sinks=[], drained_partitions=frozenset(), partitions=())

    def deltas(self, handle: object) -> tuple[DeltaFile, ...]:
        return ()


def program_of(
    configuration: Configuration = DEFAULTS,
    participants: Participants = NO_PARTICIPANTS,
    runner: EpochRunner | None = None,
    **orders: Any,
) -> Program:
    """Return a program. ``orders``: fields of ``ExecutionOrders`` that differ from those of a first attempt."""
    first = {"application": "flights", "execution": "one", "attempt": 1, "artifact": "a" * 64}
    where = {"store": "", "cache_directory": ""}
    all_orders = ExecutionOrders.model_validate({**first, **where, **orders, "configuration": configuration})
    empty = Graph(all_orders.application, ()), PipelinePlan({}, {})
    return Program(all_orders, *empty, participants, runner or EmptyEpochs())


def current_program(
    configuration: Configuration = DEFAULTS, participants: Participants = NO_PARTICIPANTS, **orders: Any
) -> CurrentProgram:
    return CurrentProgram(program_of(configuration, participants, **orders))
