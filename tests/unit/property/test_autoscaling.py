"""Laws of autoscaling, over applications with simulated work and time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from epochal.contracts.measurements import MOST_SAMPLES, LoadSample
from epochal.service.domain.autoscaling import RescaleTo, Situation, Stay, Verdict, decide
from epochal.wire.configuration import ApplicationConfiguration, Autoscaling
from tests.kit.lives import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLE = 10.0


@dataclass
class Simulated:
    """An application that receives ``work(second)`` seconds of work per second; a subtask does one second per second.

    ``overhead``: share of the time in which no subtask can work.
    """

    policy: Autoscaling
    work: Callable[[float], float]
    parallelism: int = 1
    overhead: float = 0.1
    fails: bool = False
    now: float = 0.0
    backlog: float = 0.0
    samples: list[LoadSample] = field(default_factory=list)
    changed_at: float = 0.0
    failed: int = 0
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> Simulated:
        while self.now < seconds:
            self.step()
        return self

    def step(self) -> None:
        arrived = self.work(self.now) * SAMPLE
        done = min(self.backlog + arrived, self.parallelism * SAMPLE * (1 - self.overhead))
        self.backlog += arrived - done
        self.now += SAMPLE
        lag = self.backlog / max(self.work(self.now), 0.001) if self.backlog > 1e-6 else 0.0
        self.samples = [*self.samples, LoadSample(SAMPLE, done, lag)][-MOST_SAMPLES:]
        verdict = self.verdict()
        if isinstance(verdict, RescaleTo):
            self.tries.append(self.now)
            self.changed_at = self.now
            if self.fails:
                self.failed += 1
                return
            self.changes.append((self.now, self.parallelism, verdict.parallelism))
            self.parallelism, self.samples, self.failed = verdict.parallelism, [], 0

    def verdict(self) -> Verdict:
        return decide(self.situation(), at(self.now))

    def situation(self) -> Situation:
        return Situation(self.policy, self.parallelism, tuple(self.samples), at(self.changed_at), self.failed)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@st.composite
def policies(draw: st.DrawFn) -> Autoscaling:
    least = draw(st.integers(1, 6))
    target = draw(st.floats(0.2, 0.6))
    return Autoscaling(
        least=least,
        greatest=draw(st.integers(least, 40)),
        target_busy_share=target,
        grow_above_share=draw(st.floats(target, 0.85)),
        shrink_below_share=draw(st.floats(0.0, target - 0.1)),
        lag_seconds=draw(st.sampled_from([None, 0.0, 30.0])),
        grow_after_seconds=draw(st.sampled_from([0.0, 30.0, 60.0])),
        shrink_after_seconds=draw(st.sampled_from([0.0, 120.0, 600.0])),
        cool_down_seconds=draw(st.sampled_from([1.0, 60.0, 300.0])),
    )


@st.composite
def loads(draw: st.DrawFn) -> Callable[[float], float]:
    """Work by second, at a level that changes periodically."""
    levels = draw(st.lists(st.floats(0, 30), min_size=1, max_size=8))
    length = draw(st.sampled_from([10.0, 70.0, 400.0, 2000.0]))
    return lambda second: levels[int(second // length) % len(levels)]


@examples(15)
@given(policies(), loads(), st.integers(1, 40), st.booleans())
def test_bounds_and_cool_down_are_respected_under_any_load(
    policy: Autoscaling, work: Callable[[float], float], parallelism: int, fails: bool
) -> None:
    run = Simulated(policy, work, parallelism, fails=fails).run(4000)
    assert all(policy.least <= after <= policy.greatest for _, _, after in run.changes)
    assert all(before != after for _, before, after in run.changes)
    pauses = [later - earlier for earlier, later in zip([0.0, *run.tries], run.tries, strict=False)]
    assert all(pause >= policy.cool_down_seconds for pause in pauses)
    if fails:  # each pause is twice the previous one, up to an hour
        doubled = [min(policy.cool_down_seconds * 2**failed, 3600) for failed in range(len(pauses))]
        assert all(pause >= least for pause, least in zip(pauses, doubled, strict=True))


@examples(15)
@given(policies(), st.floats(0, 40), st.integers(1, 40))
def test_the_parallelism_settles_under_a_steady_load(policy: Autoscaling, work: float, parallelism: int) -> None:
    """With a ``lag_seconds`` of 0, any small backlog would count as a lag."""
    policy = replace_lag(policy)
    run = Simulated(policy, lambda second: work, parallelism).run(12_000)
    first = len(run.changes)
    run.run(20_000)
    assert len(run.changes) == first
    kept_up = work <= run.parallelism * (1 - run.overhead)
    assert kept_up or run.parallelism == policy.greatest


def replace_lag(policy: Autoscaling) -> Autoscaling:
    return policy.model_copy(update={"lag_seconds": 30.0, "cool_down_seconds": min(policy.cool_down_seconds, 60.0)})


@examples(10)
@given(policies(), st.floats(2, 30), st.sampled_from([20.0, 60.0, 110.0, 300.0]))
@pytest.mark.claim("SDG, 3.3, parallelism")
def test_an_oscillating_load_does_not_oscillate_the_parallelism(
    policy: Autoscaling, high: float, period: float
) -> None:
    policy = policy.model_copy(
        update={"shrink_after_seconds": 600.0, "cool_down_seconds": min(60.0, policy.cool_down_seconds)}
    )
    run = Simulated(policy, lambda second: high if second % (2 * period) < period else 0.0, policy.least).run(12_000)
    grew = [after > before for _, before, after in run.changes]
    assert grew == sorted(grew, reverse=True)  # it grows for the peak and one backlog, then only shrinks
    assert all(at_second < 8000 for at_second, _, _ in run.changes)


@examples(10)
@given(policies(), st.floats(1.5, 20), st.integers(1, 10))
def test_a_lagging_application_grows(policy: Autoscaling, times: float, parallelism: int) -> None:
    """Although its subtasks are not too busy for the policy, because other work takes much of the time."""
    parallelism = min(max(parallelism, policy.least), policy.greatest)
    policy = replace_lag(policy).model_copy(update={"grow_above_share": 1.0})
    run = Simulated(policy, lambda second: parallelism * times, parallelism, overhead=0.4).run(3000)
    if policy.greatest == parallelism:
        assert not run.changes and "maximum parallelism" in run.verdict().reason
    else:
        assert run.changes[0][2] > parallelism
        assert run.changes[0][0] <= 2 * policy.cool_down_seconds + policy.grow_after_seconds + 100


@examples(10)
@given(policies(), st.integers(1, 40))
def test_an_idle_application_shrinks_to_the_minimum(policy: Autoscaling, parallelism: int) -> None:
    policy = policy.model_copy(update={"shrink_below_share": 0.01})
    run = Simulated(policy, lambda second: 0.0, parallelism).run(3000)
    assert run.parallelism == policy.least and len(run.changes) <= 2


@examples(8)
@given(policies(), loads(), st.integers(1, 40))
def test_no_rescale_begins_during_another_operation(
    policy: Autoscaling, work: Callable[[float], float], parallelism: int
) -> None:
    run = Simulated(policy, work, parallelism, fails=True)
    for _ in range(100):
        run.step()
        busy = replace(run.situation(), obstacle="an operation is under way: upgrade 1")
        assert decide(busy, at(run.now + 10_000)) == Stay("an operation is under way: upgrade 1")


def test_growth_is_proportional_and_at_most_doubles() -> None:
    policy = Autoscaling(greatest=100, cool_down_seconds=1)

    def grown(share: float, parallelism: int = 10, lag: float = 0.0) -> Verdict:
        samples = [LoadSample(10, share * 10 * parallelism, lag)] * 3
        return decide(Situation(policy, parallelism, samples, START), at(60))

    assert grown(0.75) == RescaleTo(15, "autoscaling: its subtasks were busy for 75% of 30 s")
    assert grown(0.9, lag=500.0) == RescaleTo(18, "autoscaling: its subtasks were busy for 90% of 30 s")
    assert grown(0.99, parallelism=1) == RescaleTo(2, "autoscaling: its subtasks were busy for 99% of 30 s")
    assert grown(0.5, lag=61.0) == RescaleTo(
        11, "autoscaling: a source was 61 s behind for 30 s, its subtasks busy for 50%"
    )
    assert isinstance(grown(0.6), Stay)
    assert grown(0.05, lag=61.0) == Stay(
        "a source was 61 s behind for 30 s, its subtasks busy for 5%: a higher parallelism would not help"
    )


def test_idle_samples_prevent_growth() -> None:
    policy = Autoscaling(greatest=8, cool_down_seconds=1)
    busy, idle = LoadSample(10, 20, 0.0), LoadSample(10, 0, 0.0)
    mixed = Situation(policy, 2, [busy, idle, busy], START)
    assert isinstance(decide(mixed, at(60)), Stay)
    assert isinstance(decide(replace(mixed, samples=[idle, busy, busy, busy]), at(60)), RescaleTo)
    assert decide(replace(mixed, samples=[busy]), at(60)) == Stay("measuring: 10 s of 30 s")
    quiet = [idle] * 29
    assert isinstance(decide(replace(mixed, samples=[busy, *quiet]), at(600)), Stay)
    assert decide(replace(mixed, samples=[*quiet, idle]), at(600)) == RescaleTo(
        1, "autoscaling: its subtasks were busy for at most 0% of 300 s"
    )
    behind = LoadSample(10, 0, 500.0)
    assert isinstance(decide(replace(mixed, samples=[behind, *quiet]), at(600)), Stay)


def test_a_cool_down_reports_its_end() -> None:
    policy = Autoscaling(greatest=8)
    samples = [LoadSample(10, 10)] * 3
    assert decide(Situation(policy, 1, samples, START, failed=2), at(100)) == Stay(
        "it has cooled down at 2026-01-01T00:08:00Z: 480 s after 2 failures"
    )
    assert isinstance(decide(Situation(policy, 1, samples, START, failed=20), at(3599)), Stay)
    assert isinstance(decide(Situation(policy, 1, samples, START, failed=20), at(3600)), RescaleTo)
    slow = policy.model_copy(update={"cool_down_seconds": 10_000.0})
    assert isinstance(decide(Situation(slow, 1, samples, START, failed=3), at(9_999)), Stay)
    assert math.isclose(slow.cool_down_seconds, 10_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"autoscaling": {"least": 5, "greatest": 4}}, "least 5 is above greatest 4"),
        ({"autoscaling": {"greatest": 129}}, "autoscaling.greatest 129 is above max_parallelism 128"),
        ({"autoscaling": {"greatest": 4}, "parallelism": 5}, "parallelism 5 is not between autoscaling.least 1 and"),
        ({"autoscaling": {"least": 3, "greatest": 4}}, "parallelism 2 is not between"),
        ({"autoscaling": {"greatest": 4, "target_busy_share": 0.8}}, "target_busy_share 0.8 is above grow_above_share"),
        ({"autoscaling": {"greatest": 4, "shrink_below_share": 0.5}}, "shrink_below_share 0.5 is not below"),
        ({"autoscaling": {"greatest": 4, "shrink_after_seconds": 901}}, "less than or equal to 900"),
        ({"autoscaling": {}}, "Field required"),
        ({"autoscaling": {"greatest": 4, "most": 5}}, "Extra inputs are not permitted"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ApplicationConfiguration.model_validate(settings)
