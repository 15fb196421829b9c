"""Epochal: epochs, state and exactly-once sinks for Apache Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.aggregates.mergeable import MergeableAggregate, Partial
    from epochal.client import AsyncClient, Client
    from epochal.declarations.author_classes import Context
    from epochal.declarations.expressions import epoch_time
    from epochal.declarations.keyed import BatchFunction, BroadcastProcess, KeyedProcess
    from epochal.declarations.sides import To
    from epochal.declarations.state import ListState, MapState, ValueState
    from epochal.declarations.unkeyed import PartialProcess, UnkeyedProcess
    from epochal.declarations.windows import cumulative, session, sliding, tumbling
    from epochal.pipeline.pipeline import Pipeline
    from epochal.pipeline.relation import StaticTable
    from epochal.pipeline.stream import KeyedStream, Stream
    from epochal.secrets import Secret, secret
    from epochal.snapshots.frame import read_state

__version__ = "0.2.0.dev0"

_HOME = {
    "AsyncClient": "epochal.client",
    "BatchFunction": "epochal.declarations.keyed",
    "BroadcastProcess": "epochal.declarations.keyed",
    "Client": "epochal.client",
    "Context": "epochal.declarations.author_classes",
    "KeyedProcess": "epochal.declarations.keyed",
    "KeyedStream": "epochal.pipeline.stream",
    "ListState": "epochal.declarations.state",
    "MapState": "epochal.declarations.state",
    "MergeableAggregate": "epochal.aggregates.mergeable",
    "Partial": "epochal.aggregates.mergeable",
    "PartialProcess": "epochal.declarations.unkeyed",
    "Pipeline": "epochal.pipeline.pipeline",
    "StaticTable": "epochal.pipeline.relation",
    "Stream": "epochal.pipeline.stream",
    "To": "epochal.declarations.sides",
    "UnkeyedProcess": "epochal.declarations.unkeyed",
    "ValueState": "epochal.declarations.state",
    "cumulative": "epochal.declarations.windows",
    "epoch_time": "epochal.declarations.expressions",
    "read_state": "epochal.snapshots.frame",
    "Secret": "epochal.secrets",
    "secret": "epochal.secrets",
    "session": "epochal.declarations.windows",
    "sliding": "epochal.declarations.windows",
    "tumbling": "epochal.declarations.windows",
}

__all__ = [
    "AsyncClient",
    "BatchFunction",
    "BroadcastProcess",
    "Client",
    "Context",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "MapState",
    "MergeableAggregate",
    "Partial",
    "PartialProcess",
    "Pipeline",
    "Secret",
    "StaticTable",
    "Stream",
    "To",
    "UnkeyedProcess",
    "ValueState",
    "cumulative",
    "epoch_time",
    "read_state",
    "secret",
    "session",
    "sliding",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that ``import epochal`` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'epochal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
