"""How busy an application is, for ``show``: its operators, and by name what is skewed or straggles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.client.models import Load
from epochal.contracts.measurements import OperatorLoad


def load_section(load: Load, now: datetime | None = None) -> RenderableType:
    """``load`` has operators."""
    view = Listing(
        Column("operator"),
        Column("rows", numeric=True),
        Column("busy", numeric=True),
        Column("skew", numeric=True, optional=True),
        Column("rows of the epoch", numeric=True, optional=True),
    )
    for name, operator in load.operators.items():
        view.add(
            Text(name, style="bold"),
            words.count(operator.rows),
            f"{operator.busy_seconds:.2f} s",
            "" if operator.skew is None else f"{operator.skew:.2f}",
            words.count(operator.epoch_rows),
        )
    parts: list[RenderableType] = [Text(_headline(load, now), style="dim"), view]
    parts += [
        Text(line, style="yellow") for name, operator in load.operators.items() for line in _named(name, operator)
    ]
    return Group(*parts)


def autoscaling_words(load: Load) -> str | None:
    """What autoscaling makes of it; ``None`` where it is switched off, or nothing runs."""
    if load.autoscaling is None:
        return None
    aim = load.autoscaling.parallelism
    return f"{'stays' if aim is None else f'to {aim}'}: {load.autoscaling.reason}"


def _headline(load: Load, now: datetime | None) -> str:
    lag = "" if load.lag_seconds is None else f", {load.lag_seconds:.0f} s behind"
    return (
        f"busy for {load.busy_share:.0%} of {load.seconds:.0f} s by {load.parallelism} subtasks{lag}, "
        f"as of {words.age(load.reported_at, now)}"
    )


def _named(name: str, operator: OperatorLoad) -> Iterator[str]:
    if operator.skewed and operator.largest is not None and operator.skew is not None:
        yield (
            f"{name}, subtask {operator.largest.subtask}: skewed, {words.count(operator.largest.rows)} of "
            f"{words.count(operator.rows)} rows, {operator.skew:.2f} times the mean"
        )
    for straggler in operator.stragglers:
        yield (
            f"{name}, subtask {straggler.subtask}: a straggler, busy for {straggler.busy_seconds:.2f} s over "
            f"{words.count(straggler.rows)} rows"
        )
