"""Pure parts of the epoch protocol: the transition table, the collection of answers (E3), the pace."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.configuration import Configuration
from epochal.contracts.handle import Handle
from epochal.engine.epoch import FINAL, TRANSITIONS, Event, IllegalTransition, State, advance
from epochal.engine.epoch_input import Pace
from epochal.engine.job import Answers, Collected, SinkAnswer, collect
from epochal.errors import HandlesIncomplete, RowRejected
from epochal.tasks.dead_letters import DeadLetters
from tests.kit.local_engine.sources import HandleSink


@given(st.lists(st.sampled_from(list(Event)), max_size=12))
@pytest.mark.claim("Thesis, 4.1.3")
def test_a_commit_decision_is_never_reverted(events: list[Event]) -> None:
    state: State | None = None
    history: list[State | None] = [None]
    for event in events:
        try:
            state = advance(state, event)
        except IllegalTransition:
            continue
        history.append(state)
    decided = False
    for state in history:
        decided |= state is State.PREPARED
        assert not (decided and state in (State.ABORTED, State.STARTED, None))
    for before, after in pairwise(history):
        assert before not in FINAL or after == before


def test_every_state_is_reachable_and_no_transition_moves_back() -> None:
    order = [None, State.STARTED, State.PREPARED, State.COMMITTED]
    assert set(TRANSITIONS.values()) == set(State)
    for (before, _), after in TRANSITIONS.items():
        assert after is State.ABORTED or order.index(after) - order.index(before) in (0, 1)


def test_an_illegal_transition_is_named() -> None:
    with pytest.raises(IllegalTransition, match="committed cannot take step 'abort'"):
        advance(State.COMMITTED, Event.ABORT)


def handle(owner: str, subtask: int) -> Handle:
    return Handle(owner=owner, subtask=subtask, rows=1, bytes=1, payload={})


def answers(
    operator: list[int], sink: list[tuple[int, str]], partitions: Collection[int], drained: frozenset[int] = frozenset()
) -> Answers:
    return Answers(
        operators={"sum": [handle("sum", subtask) for subtask in operator]},
        sinks=[SinkAnswer(partition, handle(name, partition)) for partition, name in sink],
        drained_partitions=drained,
        partitions=partitions,
    )


def test_complete_answers_are_collected_in_subtask_order() -> None:
    collected = collect(
        answers([1, 0], [(2, "out"), (0, "out")], range(3), drained=frozenset({1})), {"sum": 2}, ["out", "other"]
    )
    assert [item.subtask for item in collected.operators["sum"]] == [0, 1]
    assert [item.subtask for item in collected.sinks["out"]] == [0, 2]
    assert collected.sinks["other"] == ()


@pytest.mark.parametrize(
    ("operator", "sink", "partitions"),
    [
        ([0], [(0, "out")], {0}),
        ([0, 1, 1], [(0, "out")], {0}),
        ([0, 1, 2], [(0, "out")], {0}),
        ([0, 1], [], {0}),
        ([0, 1], [(0, "out"), (0, "out")], {0}),
        ([0, 1], [(0, "out"), (1, "out")], {0}),
        ([0, 1], [(0, "unknown")], {0}),
        ([0, 1], [(0, "out")], {0, 4}),
        ([0, 1], [(0, "out"), (3, "out")], {0, 4}),
    ],
    ids=[
        "missing",
        "duplicate",
        "unexpected subtask",
        "missing sink",
        "duplicate sink",
        "unexpected partition",
        "unknown sink",
        "missing second partition",
        "unexpected second partition",
    ],
)
def test_missing_or_unexpected_answers_abort_the_epoch(
    operator: list[int], sink: list[tuple[int, str]], partitions: Collection[int]
) -> None:
    with pytest.raises(HandlesIncomplete):
        collect(answers(operator, sink, partitions), {"sum": 2}, ["out"])


def with_dead_letters(sink: list[tuple[int, str, int]], most: int = 3) -> Collected:
    """``sink``: partition, sink and rows of each handle."""
    found = Answers(
        operators={},
        sinks=[
            SinkAnswer(partition, handle(name, partition).model_copy(update={"rows": rows}), f"reason {partition}")
            for partition, name, rows in sink
        ],
        drained_partitions=frozenset(),
        partitions=range(2),
    )
    dead_letters = {"out": DeadLetters("out-rejected", HandleSink("out-rejected"), most)}
    return collect(found, {}, ["out", "out-rejected"], dead_letters=dead_letters)


COMPLETE = [(0, "out", 9), (1, "out", 9), (0, "out-rejected", 1), (1, "out-rejected", 2)]


def test_dead_letters_are_collected_from_the_tasks_of_their_sink() -> None:
    collected = with_dead_letters(COMPLETE)
    assert [each.rows for each in collected.sinks["out"]] == [9, 9]
    assert [each.rows for each in collected.sinks["out-rejected"]] == [1, 2]


@pytest.mark.parametrize("position", range(4))
def test_a_missing_or_repeated_handle_of_dead_letters_aborts_the_epoch(position: int) -> None:
    with pytest.raises(HandlesIncomplete):
        with_dead_letters(COMPLETE[:position] + COMPLETE[position + 1 :])
    with pytest.raises(HandlesIncomplete):
        with_dead_letters([*COMPLETE, COMPLETE[position]])


def test_the_limit_of_rejected_rows_counts_all_subtasks() -> None:
    with pytest.raises(RowRejected, match=r"'out' rejects 3 rows or more .* max_rejects is 2.*: reason [01]"):
        with_dead_letters(COMPLETE, most=2)


def test_pace_follows_the_measured_rate_within_the_limit() -> None:
    pace, configuration = Pace(), Configuration(max_records_per_epoch=5_000, target_epoch_seconds=2.0)
    assert pace.limits(configuration).max_records == 5_000
    pace.started(10.0)
    pace.prepared(11.0, 100)
    assert pace.limits(configuration).max_records == 200
    pace.started(20.0)
    pace.prepared(20.1, 200)
    assert pace.limits(configuration).max_records == 800
    pace.started(30.0)
    pace.prepared(30.1, 5_000)
    assert pace.limits(configuration).max_records == 5_000


def test_pace_is_unlimited_without_a_target() -> None:
    pace, configuration = Pace(), Configuration()
    pace.started(0.0)
    pace.prepared(1.0, 10)
    assert pace.limits(configuration).max_records is None
