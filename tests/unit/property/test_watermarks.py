"""Laws of watermarks over random graphs and epochs: they never decrease, replays agree, and no output is late."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from epochal.state.watermarks import (
    BEGINNING,
    END,
    WHOLE,
    Clock,
    Declaration,
    Opening,
    TimedOperator,
    TimeGraph,
    due_at,
    observed,
    opened,
    output_of,
)


@st.composite
def graphs(draw: st.DrawFn, idle: bool = True) -> TimeGraph:
    """One to three declarations, and up to five operators over any previous places."""
    places: list[Declaration | TimedOperator] = []
    for number in range(draw(st.integers(1, 3))):
        idle_after = draw(st.none() | st.integers(1, 30)) if idle else None
        places.append(Declaration(f"source{number}", draw(st.integers(0, 20)), idle_after))
    for number in range(draw(st.integers(1, 5))):
        inputs = draw(st.lists(st.sampled_from([place.name for place in places]), min_size=1, max_size=3, unique=True))
        places.append(TimedOperator(f"operator{number}", tuple(inputs), draw(st.integers(0, 15))))
    return TimeGraph(tuple(places))


Rows = dict[str, dict[str, list[int]]]
EPOCHS = st.lists(
    st.tuples(
        st.integers(-5, 40),
        st.booleans(),
        st.dictionaries(
            st.sampled_from(["source0", "source1", "source2"]),
            st.dictionaries(st.sampled_from(["0", "1"]), st.lists(st.integers(0, 200), max_size=4), max_size=2),
        ),
    ),
    min_size=1,
    max_size=12,
)
"""For each epoch: movement of the driver's clock, start of an attempt, and times of rows by source and partition."""


def openings(graph: TimeGraph, epochs: list[tuple[int, bool, Rows]], read: list[frozenset[str]]) -> list[Opening]:
    now, began, found = 0, BEGINNING, []
    for (moved, first, rows), ended in zip(epochs, read, strict=True):
        now += moved
        began = now if first else began
        slices = {name: frozenset(parts) for name, parts in rows.items()}
        found.append(Opening(now, began, slices, ended=ended))
    return found


def latest(graph: TimeGraph, rows: Rows) -> dict[str, dict[str, int | None]]:
    names = {declaration.name for declaration in graph.declarations}
    return {
        name: {partition: max(times, default=None) for partition, times in parts.items()}
        for name, parts in rows.items()
        if name in names
    }


def clocks(graph: TimeGraph, epochs: list[tuple[int, bool, Rows]], ended_from: int | None = None) -> list[Clock]:
    every = frozenset(declaration.name for declaration in graph.declarations)
    ended = [every if ended_from is not None and n >= ended_from else frozenset() for n in range(len(epochs))]
    found: list[Clock] = []
    for opening, (_, _, rows) in zip(openings(graph, epochs, ended), epochs, strict=True):
        clock = opened(graph, found[-1] if found else None, opening)
        found.append(observed(graph, clock, latest(graph, rows)))
    return found


@given(graphs(), EPOCHS, st.none() | st.integers(0, 12))
def test_watermarks_never_decrease_and_the_late_watermark_follows_the_fire_watermark(
    graph: TimeGraph, epochs: list[tuple[int, bool, Rows]], ended_from: int | None
) -> None:
    before: Clock | None = None
    for clock in clocks(graph, epochs, ended_from):
        for place in graph.places:
            current = clock.places[place.name]
            assert current.late <= current.fire
            assert current.late == (BEGINNING if before is None else before.places[place.name].fire)
        if before is not None:
            assert clock.epoch_time >= before.epoch_time
            for name, parts in before.partitions.items():
                for partition, earlier in parts.items():
                    if partition in clock.partitions[name]:
                        assert clock.partitions[name][partition].watermark >= earlier.watermark
        before = clock


@given(graphs(), EPOCHS)
def test_a_replay_from_manifests_gives_the_same_clocks(graph: TimeGraph, epochs: list[tuple[int, bool, Rows]]) -> None:
    recorded = clocks(graph, epochs)
    # The replay uses the recorded epoch times; parents pass through JSON.
    parent: Clock | None = None
    for clock, (_, _, rows) in zip(recorded, epochs, strict=True):
        slices = {name: frozenset(parts) for name, parts in rows.items()}
        replayed = opened(graph, parent, Opening(clock.epoch_time, clock.attempt_began, slices))
        parent = Clock.model_validate_json(observed(graph, replayed, latest(graph, rows)).model_dump_json())
        assert parent == clock


@given(graphs(), EPOCHS, st.dictionaries(st.integers(0, 4), st.integers(0, 250)))
def test_an_epoch_opened_at_a_due_time_reaches_it(
    graph: TimeGraph, epochs: list[tuple[int, bool, Rows]], times: dict[int, int]
) -> None:
    names = [place.name for place in graph.places]
    waiting = {names[number]: at for number, at in times.items() if number < len(names)}
    clock = clocks(graph, epochs)[-1]
    due = due_at(graph, clock, waiting)
    if due is None:
        return
    assert due >= clock.epoch_time
    for _ in range(2):  # in the second epoch, if the last one had rows of a partition that is now idle
        clock = opened(graph, clock, Opening(due))
        if any(at <= clock.places[name].fire for name, at in waiting.items()):
            return
    raise AssertionError(f"{waiting} is not reached at {due}: {clock}")


@dataclass
class Delaying:
    """Outputs each row, with its own time, when fire has reached its time plus ``hold``, like a window with allowed
    lateness or a left interval join. Outputs as late as its hold permits, and asserts that no input is late."""

    hold: int
    held: list[int] = field(default_factory=list)

    def run(self, late: int, fire: int, rows: list[int]) -> list[int]:
        assert all(time >= late for time in rows), (late, fire, rows)
        self.held += rows
        out = [time for time in self.held if time + self.hold <= fire]
        self.held = [time for time in self.held if time + self.hold > fire]
        return out


@given(graphs(idle=False), EPOCHS)
def test_no_output_is_late_for_its_consumer(graph: TimeGraph, epochs: list[tuple[int, bool, Rows]]) -> None:
    """With several inputs, at any depth; no row remains when all sources have ended."""
    operators = {place.name: Delaying(place.hold) for place in graph.places if isinstance(place, TimedOperator)}
    every = frozenset(declaration.name for declaration in graph.declarations)
    arrived: dict[str, int] = dict.fromkeys([place.name for place in graph.places], 0)
    clock: Clock | None = None
    for now, (_, _, rows) in enumerate([*epochs, (0, False, {})]):
        drain = now == len(epochs)
        opening = Opening(now, ended=every if drain else frozenset(), known={name: frozenset("01") for name in every})
        clock = opened(graph, clock, opening)
        rows_of: dict[str, list[int]] = {}
        for place in graph.places:
            current = clock.places[place.name]
            if isinstance(place, Declaration):
                times = [time for part in rows.get(place.name, {}).values() for time in part]
                # Rows that are late at their declaration go no further.
                rows_of[place.name] = [time for time in times if time >= current.late]
            else:
                rows_in = [time for name in place.inputs for time in rows_of[name]]
                rows_of[place.name] = operators[place.name].run(current.late, current.fire, rows_in)
            behind = output_of(graph, clock, place.name)
            assert all(time >= behind.late for time in rows_of[place.name])
            arrived[place.name] += len(rows_of[place.name])
        clock = observed(graph, clock, latest(graph, rows))
    for place in graph.places:
        if isinstance(place, TimedOperator):
            assert clock is not None and clock.places[place.name].fire == END
            assert arrived[place.name] == sum(arrived[name] for name in place.inputs)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=10), st.integers(0, 1_000))
def test_an_ordered_partition_is_never_late_behind_a_faster_one(steps: list[tuple[int, int]], lead: int) -> None:
    graph = TimeGraph((Declaration("a", 0), TimedOperator("o", ("a",))))
    clock: Clock | None = None
    ahead, behind = lead, 0
    for now, (fast, slow) in enumerate(steps):
        ahead, behind = ahead + fast, behind + slow
        parts = {"0": ahead, "1": behind}
        clock = opened(graph, clock, Opening(now, slices={"a": frozenset(parts)}))
        assert behind >= clock.places["o"].late
        clock = observed(graph, clock, {"a": dict(parts)})
    assert WHOLE not in (clock.partitions["a"] if clock else {})
