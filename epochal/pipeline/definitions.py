"""Definitions of sources, tables and sinks that connectors return, and checks of their options.

A definition creates its source, table or sink later, because a pipeline is built without access to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Source
from epochal.contracts.stream_kind import ALL_BUT_CHANGES, Accepted
from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import closest, listed
from epochal.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SourceDefinition:
    """``make`` creates a new source for each attempt. ``description`` is JSON for users, without secrets. ``note``: its
    cost, which `epochal check` prints after the name of the source."""

    kind: str
    make: Callable[[], Source]
    description: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class TableDefinition:
    """``read`` returns the whole table. It is called in the first epoch of an attempt, and again in the first epoch
    that is at least ``refresh`` microseconds of epoch time after the last call."""

    kind: str
    read: Callable[[SparkSession], DataFrame]
    description: Mapping[str, Any] = field(default_factory=dict)
    refresh: int | None = None


def refresh_interval(what: str, refresh: str | None) -> int | None:
    """The option ``refresh`` of ``what`` (``files.table``), in microseconds. Raises ``OptionError``."""
    if refresh is None:
        return None
    try:
        return fixed_interval(f"{what}: refresh", refresh, least=1)
    except PipelineError as error:
        raise OptionError(error.message) from None


@dataclass(frozen=True)
class SinkDefinition:
    """``make`` creates the backend of the sink without accessing the target.

    ``takes``: the kinds of stream that the sink accepts; by default all but ``changes``. ``deliveries``: the supported
    deliveries. ``delivery``: the delivery that the author chose; ``None``: the ``guarantee`` of the application.
    ``note``: its cost, as ``epochal check`` shows it after the name.
    """

    kind: str
    make: Callable[[SinkPlace], SinkBackend]
    description: Mapping[str, Any] = field(default_factory=dict)
    takes: Accepted = ALL_BUT_CHANGES
    deliveries: tuple[Delivery, ...] = ("exactly_once",)
    delivery: Delivery | None = None
    note: str | None = None


def check_options(what: str, options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises ``OptionError`` for the first unknown option, with the most similar known option."""
    for name in options:
        if name not in allowed:
            raise OptionError(
                f"{what} has no option {name!r}.{closest(name, allowed)} Options are {listed(sorted(allowed))}."
            )


def check_choice(what: str, name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ``OptionError`` if the value is not one of the choices."""
    if value not in choices:
        raise OptionError(
            f"{what}: {name} is {value!r}; it must be one of {listed(choices)}.{closest(str(value), choices)}"
        )


def check_flag(what: str, name: str, value: Any) -> None:
    """Raises ``OptionError`` if the value is neither ``True`` nor ``False``."""
    if not isinstance(value, bool):
        raise OptionError(f"{what}: {name} is {value!r}; it must be True or False.")


def check_positive(what: str, name: str, value: Any, *, whole: bool) -> None:
    """Raises ``OptionError`` if the value is neither ``None`` nor a number above zero."""
    kinds = (int,) if whole else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
        raise OptionError(f"{what}: {name} is {value!r}; it must be {'an integer' if whole else 'a number'} above 0.")


def local_path(location: str) -> str | None:
    """The local path of ``location``, with ``~`` expanded; it can be relative. ``None``: another file system."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        return None
    return os.path.expanduser(rest if separator else location)


def is_absolute(location: str) -> bool:
    """Return whether ``location`` is independent of the working directory."""
    path = local_path(location)
    return path is None or os.path.isabs(path)


def absolute(location: str) -> str:
    """``location`` as an absolute path or a URL, independent of the working directory."""
    path = local_path(location)
    return location if path is None else os.path.abspath(path)
