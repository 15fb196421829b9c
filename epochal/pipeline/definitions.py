"""What a connector hands to a pipeline: how to make the source, table or sink, and what to say of it to people.

Making is put off: a pipeline is built in places where nothing of it may be touched.
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
    """``make`` gives a fresh source for each attempt. ``description`` is JSON for people, without secrets."""

    kind: str
    make: Callable[[], Source]
    description: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TableDefinition:
    """``read`` gives the whole table. It is called in the first epoch of an attempt, and again in the first epoch that
    is later than the last call by ``refresh`` microseconds of epoch time."""

    kind: str
    read: Callable[[SparkSession], DataFrame]
    description: Mapping[str, Any] = field(default_factory=dict)
    refresh: int | None = None


def refresh_interval(what: str, refresh: str | None) -> int | None:
    """The setting ``refresh`` of ``what`` (``files.table``) in microseconds. Raises ``OptionError``."""
    if refresh is None:
        return None
    try:
        return fixed_interval(f"{what}: refresh", refresh, least=1)
    except PipelineError as error:
        raise OptionError(error.message) from None


@dataclass(frozen=True)
class SinkDefinition:
    """``make`` gives the sink's backend at its place, without touching the target.

    ``takes``: the kinds of stream that may be written to it. A sink that does not say takes all but ``changes``: it is
    given the rows, and what they are to its readers is for its author to know. ``deliveries``: what its backend can do;
    ``delivery``: what its author has chosen of them, ``None``: as the application's ``guarantee`` says.
    """

    kind: str
    make: Callable[[SinkPlace], SinkBackend]
    description: Mapping[str, Any] = field(default_factory=dict)
    takes: Accepted = ALL_BUT_CHANGES
    deliveries: tuple[Delivery, ...] = ("exactly_once",)
    delivery: Delivery | None = None


def check_options(what: str, options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises ``OptionError`` for the first option that ``what`` does not have, naming the closest that it has."""
    for name in options:
        if name not in allowed:
            raise OptionError(
                f"{what} has no option {name!r}.{closest(name, allowed)} Options are {listed(sorted(allowed))}."
            )


def check_choice(what: str, name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ``OptionError`` when the value is not one of the choices."""
    if value not in choices:
        raise OptionError(f"{what}: {name} is {value!r}; it is one of {listed(choices)}.{closest(str(value), choices)}")


def check_flag(what: str, name: str, value: Any) -> None:
    """Raises ``OptionError`` when the value is neither ``True`` nor ``False``."""
    if not isinstance(value, bool):
        raise OptionError(f"{what}: {name} is {value!r}; it is True or False.")


def check_positive(what: str, name: str, value: Any, *, whole: bool) -> None:
    """Raises ``OptionError`` when the value is neither ``None`` nor a number above zero."""
    kinds = (int,) if whole else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
        raise OptionError(f"{what}: {name} is {value!r}; it is a {'whole ' if whole else ''}number above 0.")


def local_path(location: str) -> str | None:
    """The path that ``location`` says, ``~`` expanded, relative where it is that. ``None``: another file system."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        return None
    return os.path.expanduser(rest if separator else location)


def is_absolute(location: str) -> bool:
    """Whether ``location`` means the same in every working directory."""
    path = local_path(location)
    return path is None or os.path.isabs(path)


def absolute(location: str) -> str:
    """``location`` such that it means the same in every working directory: an absolute path, or a URL."""
    path = local_path(location)
    return location if path is None else os.path.abspath(path)
