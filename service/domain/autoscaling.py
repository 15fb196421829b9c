"""Autoscaling decisions: whether to change the parallelism of an application, and to what. A pure function of
measurements.

The parallelism grows if, in each sample of the last ``grow_after_seconds``, the subtasks were busier than
``grow_above_share`` or a source lagged by more than ``lag_seconds``. It shrinks if, in each sample of the last
``shrink_after_seconds``, they were less busy than ``shrink_below_share`` and no source lagged. A load that fluctuates
faster keeps the parallelism of its peaks. A steady load causes no oscillation: the lower parallelism would be busy by
at most ``target_busy_share``.

With ``per_operator`` the same conditions decide when operators get more or fewer subtasks, and
:mod:`epochal.service.domain.operator_scaling` how many each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from epochal.contracts.measurements import LoadSample
from epochal.service.domain.operator_scaling import OperatorWork, grown, shrunk, within_bounds
from epochal.wire.configuration import Autoscaling

LONGEST_PAUSE = timedelta(hours=1)
"""Maximum interval between tries after failures, unless the cool-down is longer."""


@dataclass(frozen=True)
class Situation:
    """The state of a running application.

    ``samples``: consecutive, of the current version and parallelism, oldest first. ``changed_at``: time of the last
    change or try. ``failed``: number of automatic rescalings that failed since the last success. ``obstacle``: why
    nothing can be changed now. ``operators``: recent work of each operator, with ``per_operator``.
    """

    policy: Autoscaling
    parallelism: int
    samples: Sequence[LoadSample]
    changed_at: datetime
    failed: int = 0
    obstacle: str | None = None
    operators: Mapping[str, OperatorWork] = field(default_factory=dict)

    @property
    def per_operator(self) -> bool:
        return self.policy.per_operator

    def busy_share(self, samples: Sequence[LoadSample]) -> float:
        """Seconds of work per subtask and second."""
        if not self.per_operator:
            return busy_share(samples, self.parallelism)
        seconds = sum(sample.seconds for sample in samples)
        return sum(sample.busy_share * sample.seconds for sample in samples) / seconds if seconds else 0.0


@dataclass(frozen=True)
class Stay:
    reason: str


@dataclass(frozen=True)
class RescaleTo:
    """``parallelism``: of the application; ``operators``: of single operators, with ``per_operator``."""

    parallelism: int | None
    reason: str
    operators: Mapping[str, int] = field(default_factory=dict)


Verdict = Stay | RescaleTo


def decide(situation: Situation, now: datetime) -> Verdict:
    """``now`` and ``changed_at`` are by the same clock."""
    if situation.obstacle is not None:
        return Stay(situation.obstacle)
    pause = cool_down(situation.policy, situation.failed)
    until = situation.changed_at + pause
    if now < until:
        failures = f" after {situation.failed} failures" if situation.failed else ""
        return Stay(f"it has cooled down at {until:%Y-%m-%dT%H:%M:%SZ}: {pause.total_seconds():g} s{failures}")
    return _outside_bounds(situation) or _growth(situation) or _shrinkage(situation) or _steady(situation)


def cool_down(policy: Autoscaling, failed: int) -> timedelta:
    """Minimum time between the last change and the next."""
    usual = timedelta(seconds=policy.cool_down_seconds)
    doubled: int = 2 ** min(failed, 20)
    return max(usual, min(usual * doubled, LONGEST_PAUSE))


def _outside_bounds(situation: Situation) -> Verdict | None:
    now, policy = situation.parallelism, situation.policy
    if situation.per_operator:
        within = within_bounds(policy, situation.operators)
        reason = f"autoscaling: between {policy.least} and {policy.greatest}"
        return RescaleTo(None, reason, within) if within else None
    nearest = min(max(now, policy.least), policy.greatest)
    return None if nearest == now else RescaleTo(nearest, f"autoscaling: between {policy.least} and {policy.greatest}")


def _growth(situation: Situation) -> Verdict | None:
    policy, now = situation.policy, situation.parallelism
    recent = latest(situation.samples, policy.grow_after_seconds)
    if recent is None:
        return None
    share = situation.busy_share(recent)
    seconds = sum(sample.seconds for sample in recent)
    if all(situation.busy_share([sample]) > policy.grow_above_share for sample in recent):
        reason = f"its subtasks were busy for {share:.0%} of {seconds:.0f} s"
    elif all(_lags(policy, sample) for sample in recent):
        behind = min(sample.lag_seconds or 0.0 for sample in recent)
        reason = f"a source was {behind:.0f} s behind for {seconds:.0f} s, its subtasks busy for {share:.0%}"
        if share < policy.shrink_below_share:
            return Stay(f"{reason}: a higher parallelism would not help")
    else:
        return None
    if situation.per_operator:
        more = grown(policy, situation.operators, share)
        if more:
            return RescaleTo(None, f"autoscaling: {reason}", more)
        return Stay(f"{reason}; its operators have their maximum parallelism")
    if now >= policy.greatest:
        return Stay(f"{reason}; it has its maximum parallelism")
    needed = math.ceil(now * share / policy.target_busy_share)
    return RescaleTo(min(max(needed, now + 1), 2 * now, policy.greatest), f"autoscaling: {reason}")


def _shrinkage(situation: Situation) -> Verdict | None:
    policy, now = situation.policy, situation.parallelism
    recent = latest(situation.samples, policy.shrink_after_seconds)
    if recent is None or (now <= policy.least and not situation.per_operator):
        return None
    shares = [situation.busy_share([sample]) for sample in recent]
    if max(shares) >= policy.shrink_below_share or any(_lags(policy, sample) for sample in recent):
        return None
    seconds = sum(sample.seconds for sample in recent)
    reason = f"autoscaling: its subtasks were busy for at most {max(shares):.0%} of {seconds:.0f} s"
    if situation.per_operator:
        fewer = shrunk(policy, situation.operators, max(shares))
        return RescaleTo(None, reason, fewer) if fewer else None
    needed = max(math.ceil(now * max(shares) / policy.target_busy_share), policy.least)
    return RescaleTo(needed, reason) if needed < now else None


def _steady(situation: Situation) -> Stay:
    policy, samples = situation.policy, situation.samples
    recent = latest(samples, policy.grow_after_seconds)
    if recent is None:
        measured = sum(sample.seconds for sample in samples)
        return Stay(f"measuring: {measured:.0f} s of {policy.grow_after_seconds:g} s")
    return Stay(f"its subtasks were busy for {situation.busy_share(recent):.0%}")


def latest(samples: Sequence[LoadSample], seconds: float) -> Sequence[LoadSample] | None:
    """The fewest latest samples that cover this time, at least one; ``None`` if all of them do not."""
    covered = 0.0
    for count, sample in enumerate(reversed(samples), start=1):
        covered += sample.seconds
        if covered >= seconds:
            return samples[len(samples) - count :]
    return None


def busy_share(samples: Sequence[LoadSample], parallelism: int) -> float:
    seconds = sum(sample.seconds for sample in samples)
    return sum(sample.busy_seconds for sample in samples) / (seconds * parallelism) if seconds else 0.0


def _lags(policy: Autoscaling, sample: LoadSample) -> bool:
    limit, lag = policy.lag_seconds, sample.lag_seconds
    return limit is not None and lag is not None and lag > limit
