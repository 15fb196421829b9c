"""When the parallelism of an application is changed by itself, and to what: a pure function of what was measured.

It grows when its subtasks were busier than ``grow_above_share``, or a source was further behind than ``lag_seconds``,
in each sample of the last ``grow_after_seconds``; it shrinks when they were less busy than ``shrink_below_share``, and
no source was behind, in each sample of the last ``shrink_after_seconds``. So a load that comes and goes more often than
that keeps the parallelism that it needs when it is there, and a steady load is never answered by a change back: what
it shrinks to would be busy by ``target_busy_share`` at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from epochal.contracts.measurements import LoadSample
from epochal.wire.configuration import Autoscaling

LONGEST_PAUSE = timedelta(hours=1)
"""After failures it is tried again at least so often, unless the cool-down itself is longer."""


@dataclass(frozen=True)
class Situation:
    """What is known of an application that runs.

    ``samples``: of what runs now, one after the other, oldest first. ``changed_at``: when what runs was last changed,
    or was tried to be. ``failed``: how many rescalings that were begun by themselves have failed since one succeeded.
    ``obstacle``: why nothing can be changed now.
    """

    policy: Autoscaling
    parallelism: int
    samples: Sequence[LoadSample]
    changed_at: datetime
    failed: int = 0
    obstacle: str | None = None


@dataclass(frozen=True)
class Stay:
    reason: str


@dataclass(frozen=True)
class RescaleTo:
    parallelism: int
    reason: str


Verdict = Stay | RescaleTo


def decide(situation: Situation, now: datetime) -> Verdict:
    """``now`` and ``changed_at`` by the same clock."""
    if situation.obstacle is not None:
        return Stay(situation.obstacle)
    pause = cool_down(situation.policy, situation.failed)
    until = situation.changed_at + pause
    if now < until:
        failures = f" after {situation.failed} failures" if situation.failed else ""
        return Stay(f"it has cooled down at {until:%Y-%m-%dT%H:%M:%SZ}: {pause.total_seconds():g} s{failures}")
    return _outside_bounds(situation) or _growth(situation) or _shrinkage(situation) or _steady(situation)


def cool_down(policy: Autoscaling, failed: int) -> timedelta:
    """Between the last change and the next."""
    usual = timedelta(seconds=policy.cool_down_seconds)
    doubled: int = 2 ** min(failed, 20)
    return max(usual, min(usual * doubled, LONGEST_PAUSE))


def _outside_bounds(situation: Situation) -> Verdict | None:
    now, policy = situation.parallelism, situation.policy
    nearest = min(max(now, policy.least), policy.greatest)
    return None if nearest == now else RescaleTo(nearest, f"autoscaling: between {policy.least} and {policy.greatest}")


def _growth(situation: Situation) -> Verdict | None:
    policy, now = situation.policy, situation.parallelism
    recent = latest(situation.samples, policy.grow_after_seconds)
    if recent is None:
        return None
    share = busy_share(recent, now)
    seconds = sum(sample.seconds for sample in recent)
    if all(busy_share([sample], now) > policy.grow_above_share for sample in recent):
        reason = f"its subtasks were busy for {share:.0%} of {seconds:.0f} s"
    elif all(_lags(policy, sample) for sample in recent):
        behind = min(sample.lag_seconds or 0.0 for sample in recent)
        reason = f"a source was {behind:.0f} s behind for {seconds:.0f} s, its subtasks busy for {share:.0%}"
        if share < policy.shrink_below_share:
            return Stay(f"{reason}: more of them would not help")
    else:
        return None
    if now >= policy.greatest:
        return Stay(f"{reason}; it has its greatest parallelism")
    needed = math.ceil(now * share / policy.target_busy_share)
    return RescaleTo(min(max(needed, now + 1), 2 * now, policy.greatest), f"autoscaling: {reason}")


def _shrinkage(situation: Situation) -> Verdict | None:
    policy, now = situation.policy, situation.parallelism
    recent = latest(situation.samples, policy.shrink_after_seconds)
    if recent is None or now <= policy.least:
        return None
    shares = [busy_share([sample], now) for sample in recent]
    if max(shares) >= policy.shrink_below_share or any(_lags(policy, sample) for sample in recent):
        return None
    needed = max(math.ceil(now * max(shares) / policy.target_busy_share), policy.least)
    if needed >= now:
        return None
    seconds = sum(sample.seconds for sample in recent)
    return RescaleTo(needed, f"autoscaling: its subtasks were busy for at most {max(shares):.0%} of {seconds:.0f} s")


def _steady(situation: Situation) -> Stay:
    policy, samples = situation.policy, situation.samples
    recent = latest(samples, policy.grow_after_seconds)
    if recent is None:
        measured = sum(sample.seconds for sample in samples)
        return Stay(f"it is measured: {measured:.0f} s of {policy.grow_after_seconds:g} s")
    return Stay(f"its subtasks were busy for {busy_share(recent, situation.parallelism):.0%}")


def latest(samples: Sequence[LoadSample], seconds: float) -> Sequence[LoadSample] | None:
    """As few of the latest as cover so long, one at least; ``None`` when all do not."""
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
