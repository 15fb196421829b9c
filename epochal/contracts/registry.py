"""Discovery of backends, connectors and launchers through entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from epochal.errors import OptionError

STATE_BACKENDS = "epochal.state_backends"
SINKS = "epochal.sinks"
SOURCES = "epochal.sources"
LAUNCHERS = "epochal.launchers"
RUNNERS = "epochal.runners"


@cache
def names(group: str) -> tuple[str, ...]:
    """The names registered in an entry point group, sorted."""
    return tuple(sorted(entry_points(group=group).names))


@cache
def find(group: str, name: str) -> Any:
    """The object registered under ``name``. Raises ``OptionError``, which lists the registered names."""
    for entry in entry_points(group=group, name=name):
        return entry.load()
    kind = group.removeprefix("epochal.").replace("_", " ").removesuffix("s")
    raise OptionError(f"Unknown {kind} {name!r}; installed are: {', '.join(names(group)) or 'none'}.")
