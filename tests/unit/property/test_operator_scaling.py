"""Laws of autoscaling per operator, over applications with simulated work and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.measurements import MOST_SAMPLES, LoadSample
from epochal.service.domain.autoscaling import RescaleTo, Situation, Stay, Verdict, decide
from epochal.service.domain.operator_scaling import OperatorWork, grown, shrunk
from epochal.wire.configuration import Autoscaling
from tests.kit.lives import examples
from tests.unit.property.test_autoscaling import SAMPLE, at, policies

Work = Mapping[str, float]
OPERATORS = ("first", "second", "third")


@dataclass
class Simulated:
    """An application whose operators run one after another. ``work(second)``: seconds of work per second and operator,
    for the input that arrives in this second. ``overhead``: share of the time in which no operator works."""

    policy: Autoscaling
    work: Callable[[float], Work]
    subtasks: dict[str, int]
    overhead: float = 0.1
    now: float = 0.0
    backlog: float = 0.0
    samples: list[LoadSample] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    changed_at: float = 0.0
    changes: list[tuple[float, dict[str, int], dict[str, int]]] = field(default_factory=list)
    reason: str = ""

    def run(self, seconds: float) -> Simulated:
        while self.now < seconds:
            self.step()
        return self

    def share(self) -> float:
        """Share of the time for the input of one second."""
        return sum(seconds / self.subtasks[name] for name, seconds in self.work(self.now).items())

    def step(self) -> None:
        share, work = self.share(), self.work(self.now)
        arrived = self.backlog + SAMPLE
        done = min(arrived, SAMPLE * (1 - self.overhead) / share) if share else arrived
        self.backlog = arrived - done
        self.now += SAMPLE
        self.busy = {name: seconds * done for name, seconds in work.items()}
        self.samples = [*self.samples, LoadSample(SAMPLE, 0.0, self.backlog, share * done / SAMPLE)][-MOST_SAMPLES:]
        verdict = self.verdict()
        self.reason = verdict.reason
        if isinstance(verdict, RescaleTo):
            assert verdict.parallelism is None
            before = {name: self.subtasks[name] for name in verdict.operators}
            self.changes.append((self.now, before, dict(verdict.operators)))
            self.subtasks, self.samples, self.changed_at = {**self.subtasks, **verdict.operators}, [], self.now

    def verdict(self) -> Verdict:
        operators = {name: OperatorWork(number, self.busy[name]) for name, number in self.subtasks.items()}
        return decide(
            Situation(self.policy, 1, tuple(self.samples), at(self.changed_at), operators=operators), at(self.now)
        )


POLICIES = policies().map(
    lambda policy: policy.model_copy(
        update={
            "per_operator": True,
            "lag_seconds": 30.0,
            "cool_down_seconds": min(policy.cool_down_seconds, 60.0),
        }
    )
)
STARTS = st.fixed_dictionaries({name: st.integers(1, 40) for name in OPERATORS})
WORK = st.fixed_dictionaries({name: st.floats(0, 10) for name in OPERATORS})


@examples(15)
@given(POLICIES, st.lists(WORK, min_size=1, max_size=6), st.sampled_from([10.0, 70.0, 400.0]), STARTS)
def test_operators_stay_within_bounds_under_any_load(
    policy: Autoscaling, levels: list[Work], length: float, subtasks: dict[str, int]
) -> None:
    run = Simulated(policy, lambda second: levels[int(second // length) % len(levels)], subtasks).run(4000)
    for _, before, after in run.changes:
        assert all(policy.least <= number <= policy.greatest for number in after.values())
        assert all(before[name] != number for name, number in after.items())
        within = {name for name, number in before.items() if policy.least <= number <= policy.greatest}
        assert all(after[name] <= 2 * before[name] for name in within)
        assert len({after[name] > before[name] for name in within}) < 2, "all in one direction"
    times = [0.0, *(second for second, _, _ in run.changes)]
    assert all(later - earlier >= policy.cool_down_seconds for earlier, later in pairwise(times))


@examples(15)
@given(POLICIES, WORK, STARTS)
def test_the_numbers_settle_under_a_steady_load(policy: Autoscaling, work: Work, subtasks: dict[str, int]) -> None:
    run = Simulated(policy, lambda second: work, subtasks).run(30_000)
    first = len(run.changes)
    run.run(40_000)
    assert len(run.changes) == first
    at_most = all(number == policy.greatest for name, number in run.subtasks.items() if work[name] > 0)
    assert run.share() <= 1 - run.overhead or at_most


@examples(10)
@given(POLICIES, STARTS)
def test_idle_operators_shrink_to_the_minimum(policy: Autoscaling, subtasks: dict[str, int]) -> None:
    policy = policy.model_copy(update={"shrink_below_share": 0.01})
    run = Simulated(policy, lambda second: dict.fromkeys(OPERATORS, 0.0), subtasks).run(3000)
    assert set(run.subtasks.values()) == {policy.least}


@examples(25)
@given(POLICIES, WORK, STARTS)
def test_shrunk_operators_take_at_most_the_target(policy: Autoscaling, work: Work, subtasks: dict[str, int]) -> None:
    share = sum(seconds / subtasks[name] for name, seconds in work.items())
    if share < policy.shrink_below_share:
        operators = {name: OperatorWork(number, work[name]) for name, number in subtasks.items()}
        after = {**subtasks, **shrunk(policy, operators, share)}
        assert all(after[name] <= number for name, number in subtasks.items())
        assert sum(seconds / after[name] for name, seconds in work.items()) <= policy.target_busy_share + 1e-6


def test_an_operator_with_much_work_gets_more_subtasks_than_one_with_little() -> None:
    policy = Autoscaling(greatest=64, per_operator=True)
    operators = {"heavy": OperatorWork(4, 36.0), "light": OperatorWork(4, 0.04)}
    assert grown(policy, operators, 0.9) == {"heavy": 8}
    assert shrunk(policy, {"heavy": OperatorWork(32, 36.0), "light": OperatorWork(32, 0.36)}, 0.2) == {
        "heavy": 14,
        "light": 2,
    }


def test_a_lagging_application_gives_its_slowest_operator_one_more() -> None:
    policy = Autoscaling(greatest=5, per_operator=True)
    operators = {"slow": OperatorWork(4, 3.0), "fast": OperatorWork(4, 1.0)}
    assert grown(policy, operators, 0.3) == {"slow": 5}
    assert grown(policy, {"slow": OperatorWork(5, 3.0), "fast": OperatorWork(4, 1.0)}, 0.3) == {"fast": 5}
    assert grown(policy, {"slow": OperatorWork(5, 3.0), "fast": OperatorWork(5, 1.0)}, 0.3) == {}


def test_numbers_outside_the_bounds_are_moved_into_them() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    policy = Autoscaling(least=2, greatest=8, per_operator=True)
    operators = {"few": OperatorWork(1, 1.0), "usual": OperatorWork(4, 1.0), "many": OperatorWork(9, 1.0)}
    situation = Situation(policy, 4, (), start, operators=operators)
    found = decide(situation, start + timedelta(hours=1))
    assert found == RescaleTo(None, "autoscaling: between 2 and 8", {"few": 2, "many": 8})
    assert isinstance(decide(Situation(policy, 4, (), start), start + timedelta(hours=1)), Stay)
