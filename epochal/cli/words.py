"""Numbers, times and names as people read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from epochal.contracts.catalog import ShownDue
from epochal.wire.projects import full_name


def age(then: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in its largest unit: ``just now``, ``41 s``, ``3 min``, ``5 h``, ``12 d``."""
    if then is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 1:
        return "just now"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds // 86400)} d ago"


def count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def imported_from(application: str, epoch: int, project: str, here: str) -> str:
    """What an import or a fork into the project ``here`` came from: ``pricing.orders @ epoch 12 (project pricing)``."""
    said = f"{full_name(project, application)} @ epoch {epoch}"
    return said if project == here else f"{said} (project {project})"


def size(bytes: int | None) -> str:
    """Bytes in binary units with three digits: ``812 B``, ``4.2 KiB``, ``31 MiB``."""
    if bytes is None:
        return ""
    value = float(bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def code(sha256: str | None) -> str:
    """An artifact's sha256, as far as people compare it."""
    return "" if sha256 is None else sha256[:8]


def moment(time: datetime | None) -> str:
    """A time of events, in UTC, to the second."""
    return "–" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def due(next: ShownDue) -> str:
    """What opens the next epoch: ``2026-05-01 12:00:05 (processing time of 'reminders')``."""
    if next.clock == "processing":
        return f"{moment(next.at)} (processing time of {next.operator!r})"
    return f"{moment(next.at)} ({next.operator!r}, event time {moment(next.until)})"


def values(mapping: Mapping[str, Any]) -> str:
    """``late_minutes=15, restart.max_restarts=2``: as they would be given on the command line."""
    return ", ".join(f"{name}={_value(value)}" for name, value in _flat(mapping))


def difference(before: Any, after: Any) -> str:
    """``10 → 15``, ``unset → "2026"``."""
    return " → ".join("unset" if value is None else json.dumps(value, ensure_ascii=False) for value in (before, after))


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "spark" else f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
