"""Watermarks: the rules of the design, one case each."""

from __future__ import annotations

import pytest

from epochal.state.watermarks import (
    BEGINNING,
    END,
    LATEST,
    WHOLE,
    Clock,
    Declaration,
    Opening,
    TimedOperator,
    TimeGraph,
    Watermarks,
    due_at,
    idle_at,
    latest_accepted,
    observed,
    opened,
    output_of,
)

NOBODY: frozenset[str] = frozenset()
ONE = TimeGraph((Declaration("a", delay=10, idle_after=60), TimedOperator("window", ("a",))))
TWO = TimeGraph(
    (
        Declaration("a", delay=0, idle_after=60),
        Declaration("b", delay=0, idle_after=60),
        TimedOperator("both", ("a", "b")),
    )
)


class Application:
    """Runs epochs over one graph; ``clock`` is the state, as in manifests."""

    def __init__(self, graph: TimeGraph) -> None:
        self.graph = graph
        self.clock: Clock | None = None
        self.now = 0
        self.attempt_began = BEGINNING

    def epoch(
        self,
        rows: dict[str, dict[str, int | None]] | None = None,
        *,
        now: int | None = None,
        first: bool = False,
        ended: frozenset[str] = NOBODY,
        known: dict[str, frozenset[str]] | None = None,
    ) -> Clock:
        self.now = self.now if now is None else now
        slices = {name: frozenset(partitions) for name, partitions in (rows or {}).items()}
        self.attempt_began = self.now if first else self.attempt_began
        opening = Opening(self.now, self.attempt_began, slices, known or {}, ended)
        self.clock = observed(self.graph, opened(self.graph, self.clock, opening), rows or {})
        return self.clock


def marks(clock: Clock, name: str) -> tuple[int, int]:
    return clock.places[name].late, clock.places[name].fire


def test_the_late_bound_is_the_parents_watermark() -> None:
    application = Application(ONE)
    assert marks(application.epoch({"a": {WHOLE: 100}}), "window") == (BEGINNING, BEGINNING)
    assert marks(application.epoch({"a": {WHOLE: 200}}), "window") == (BEGINNING, 90)
    assert marks(application.epoch({"a": {WHOLE: 150}}), "window") == (90, 190)
    assert marks(application.epoch(), "window") == (190, 190)
    assert marks(application.epoch({"a": {WHOLE: None}}), "window") == (190, 190)


def test_a_partition_that_catches_up_does_not_make_rows_of_another_late() -> None:
    partitioned, single = Application(ONE), Application(ONE)
    for caught_up, lagging in ((1_000, 10), (2_000, 20), (3_000, 30)):
        separate = partitioned.epoch({"a": {"0": caught_up, "1": lagging}})
        together = single.epoch({"a": {WHOLE: max(caught_up, lagging)}})
    assert separate.places["window"].late <= 30
    assert together.places["window"].late > 30  # without partitions the same rows would be late


def test_a_partition_without_rows_holds_the_watermark_until_it_is_idle() -> None:
    application = Application(ONE)
    known = {"a": frozenset({"0", "1"})}
    application.epoch({"a": {"0": 100}}, known=known)
    assert marks(application.epoch({"a": {"0": 100}}, now=59, known=known), "a")[1] == BEGINNING
    assert marks(application.epoch({"a": {"0": 100}}, now=60, known=known), "a")[1] == 90
    # A partition that no longer exists does not hold the watermark.
    application.epoch({"a": {"0": 100, "1": 20}}, known=known)
    application.epoch({"a": {"0": 300}}, known={"a": frozenset({"0"})})
    assert marks(application.epoch(known={"a": frozenset({"0"})}), "a")[1] == 290


def test_an_idle_source_of_a_union_holds_the_watermark_when_it_resumes() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    assert marks(application.epoch({"a": {WHOLE: 200}}, now=59), "both")[1] == 50
    clock = application.epoch({"a": {WHOLE: 300}}, now=60)
    assert clock.places["b"].idle and not clock.places["both"].idle
    assert marks(clock, "both")[1] == 200
    # From the first epoch with a slice of this source on, its rows hold the watermark again.
    clock = application.epoch({"a": {WHOLE: 400}, "b": {WHOLE: 250}}, now=61)
    assert not clock.places["b"].idle
    assert marks(clock, "both") == (200, 200)
    assert marks(application.epoch({"a": {WHOLE: 500}}, now=62), "both") == (200, 250)


def test_the_watermark_stays_if_all_sources_are_idle() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    application.epoch()
    clock = application.epoch(now=1_000)
    assert clock.places["both"].idle
    assert marks(clock, "both") == (50, 50)


def test_a_source_without_idle_timeout_holds_the_watermark() -> None:
    application = Application(TimeGraph((Declaration("a", 0, 60), Declaration("b", 0), TimedOperator("o", ("a", "b")))))
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    application.epoch({"a": {WHOLE: 500}}, now=10**9)
    assert marks(application.epoch(now=10**9), "o")[1] == 50


def test_idle_time_is_counted_from_the_start_of_the_attempt() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    # A day without a driver is not idle time of the sources.
    clock = application.epoch({"a": {WHOLE: 200}}, now=86_400, first=True)
    assert marks(clock, "both")[1] == 50
    assert marks(application.epoch({"a": {WHOLE: 200}}, now=86_459), "both")[1] == 50
    assert marks(application.epoch({"a": {WHOLE: 200}}, now=86_460), "both")[1] == 200


def test_an_ended_source_does_not_hold_the_watermark() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    assert marks(application.epoch({"a": {WHOLE: 200}}, ended=frozenset({"b"})), "both")[1] == 100
    assert marks(application.epoch(ended=frozenset({"b"})), "both")[1] == 200
    assert marks(application.epoch(ended=frozenset({"a", "b"})), "both") == (200, END)


def test_an_ended_source_does_not_end_event_time_while_another_is_idle() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    application.epoch(now=60, ended=frozenset({"b"}))
    clock = application.epoch(now=120, ended=frozenset({"b"}))
    assert clock.places["a"].idle and clock.places["both"].idle
    assert marks(clock, "both") == (100, 100)
    application.epoch({"a": {WHOLE: 150}}, now=121, ended=frozenset({"b"}))
    assert marks(application.epoch(ended=frozenset({"b"})), "both")[1] == 150


def test_watermark_holds_of_operators_add_up_within_one_epoch() -> None:
    graph = TimeGraph(
        (
            Declaration("a", 0),
            Declaration("b", 0),
            TimedOperator("join", ("a", "b"), hold=30),
            TimedOperator("window", ("join",), hold=5),
            TimedOperator("last", ("window", "a")),
        )
    )
    application = Application(graph)
    application.epoch({"a": {WHOLE: 200}, "b": {WHOLE: 100}})
    application.epoch({"a": {WHOLE: 300}, "b": {WHOLE: 300}})
    clock = application.epoch()
    assert [marks(clock, name) for name in ("join", "window", "last")] == [(100, 300), (70, 270), (65, 265)]
    assert output_of(graph, clock, "join") == Watermarks(late=70, fire=270)
    assert output_of(graph, clock, "a") == clock.places["a"]
    clock = application.epoch(ended=frozenset({"a", "b"}))
    assert clock.places["last"].fire == END  # holds do not apply at the end


def test_idleness_passes_through_operators() -> None:
    graph = TimeGraph(
        (
            Declaration("a", 0),
            Declaration("b", 0, 60),
            TimedOperator("of_b", ("b",), hold=5),
            TimedOperator("both", ("a", "of_b")),
        )
    )
    application = Application(graph)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}})
    assert marks(application.epoch({"a": {WHOLE: 200}}, now=10), "both")[1] == 45
    clock = application.epoch(now=60)
    assert clock.places["of_b"].idle
    assert marks(clock, "both")[1] == 200


def test_epoch_time_and_watermarks_never_fall_when_the_clock_jumps_back() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 100}}, now=1_000)
    clock = application.epoch({"a": {WHOLE: 1}}, now=500)
    assert clock.epoch_time == 1_000
    assert marks(application.epoch(now=400), "both") == (100, 100)


def test_the_latest_accepted_time_is_relative_to_epoch_time() -> None:
    assert latest_accepted(1_000, 50) == 1_050
    assert latest_accepted(1_000, None) == latest_accepted(LATEST - 10, 100) == LATEST


def test_idle_timeouts_are_due_at_their_time() -> None:
    application = Application(TWO)
    clock = application.epoch({"a": {WHOLE: 100}, "b": {WHOLE: 50}}, now=5)
    assert idle_at(TWO, clock) == (65,)
    clock = application.epoch({"a": {WHOLE: 200}}, now=20)
    assert idle_at(TWO, clock) == (65, 80)
    assert idle_at(TWO, clock, ended=frozenset({"a"})) == (65,)
    clock = application.epoch(now=65)
    assert idle_at(TWO, clock) == (80,)
    assert idle_at(TWO, application.epoch(now=80)) == ()


def test_a_new_attempt_waits_for_one_idle_timeout() -> None:
    application = Application(TWO)
    application.epoch({"a": {WHOLE: 200}, "b": {WHOLE: 50}}, now=5)
    application.epoch(now=6)
    clock = application.epoch({"a": {WHOLE: 300}}, now=65)
    assert clock.places["b"].idle
    # The driver restarts a day later without input. Its first epoch applies the last observed times of source a.
    assert idle_at(TWO, clock, attempt_began=86_400) == (86_460,)
    assert due_at(TWO, clock, {"both": 250}, attempt_began=86_400) == 86_460
    clock = opened(TWO, clock, Opening(86_460, attempt_began=86_400))
    assert clock.places["b"].idle and clock.places["both"].fire == 300
    assert opened(TWO, clock, Opening(86_460, attempt_began=86_400)).places["both"].idle


def test_the_due_time_of_a_watermark_depends_on_idle_sources() -> None:
    application = Application(TWO)
    clock = application.epoch({"a": {WHOLE: 200}, "b": {WHOLE: 50}}, now=5)
    # Times below the observed ones are due immediately; times that source b holds when b is idle; others never.
    assert due_at(TWO, clock, {"both": 50}) == 5
    clock = application.epoch({"a": {WHOLE: 300}}, now=20)
    assert due_at(TWO, clock, {"both": 51}) == 65
    assert due_at(TWO, clock, {"both": 300}) == 65
    assert due_at(TWO, clock, {"both": 301}) is None
    assert due_at(TWO, clock, {}) is None
    assert due_at(TWO, clock, {"both": 10**9}, ended=frozenset({"a", "b"})) == 20


def test_an_operator_added_by_an_upgrade_inherits_the_late_bound() -> None:
    application = Application(ONE)
    application.epoch({"a": {WHOLE: 110}})
    application.epoch({"a": {WHOLE: 210}})
    application.graph = TimeGraph((*ONE.places, TimedOperator("added", ("window",))))
    assert marks(application.epoch(), "added") == (100, 200)


def test_a_clock_round_trips_through_json() -> None:
    application = Application(TWO)
    application.epoch({"a": {"0": 100, "1": 70}, "b": {WHOLE: 50}}, now=5)
    clock = application.epoch({"a": {"0": 300}}, now=80)
    assert Clock.model_validate_json(clock.model_dump_json()) == clock


@pytest.mark.parametrize(
    "places",
    [
        (Declaration("a", 0), Declaration("a", 0)),
        (TimedOperator("o", ("a",)), Declaration("a", 0)),
        (TimedOperator("o", ()),),
        (Declaration("a", 0), TimedOperator("o", ("a",), hold=-1)),
        (Declaration("a", -1),),
        (Declaration("a", 0, idle_after=0),),
    ],
)
def test_invalid_time_graphs_are_refused(places: tuple[Declaration | TimedOperator, ...]) -> None:
    with pytest.raises(ValueError, match=r"named|inputs|negative"):
        TimeGraph(places)
