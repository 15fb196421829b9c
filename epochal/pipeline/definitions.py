"""What a connector hands to a pipeline: how to make the source, table or sink, and what to say of it to people.

Making is put off: a pipeline is built in places where nothing of it may be touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Source
from epochal.contracts.stream_kind import ALL_BUT_CHANGES, Accepted
from epochal.declarations.intervals import fixed_interval
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
