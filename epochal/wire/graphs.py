"""The graph of a version in answers: as the control plane keeps it for people, without the core's own models."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from epochal.contracts.stream_kind import StreamKind
from epochal.wire.bodies import Answer


class NodeAnswer(Answer):
    """``type`` is ``source``, ``static``, ``transform``, ``watermark``, ``sink``, an operator's kind, such as
    ``aggregate``, or, of the two ends of a loop, which have one name, ``feedback`` and ``close``. ``columns`` (name ->
    Spark type) are known after an analysis only. ``stream``: the kind of stream that it gives; ``null`` for tables and
    sinks, and in versions from before there were kinds."""

    id: int
    name: str
    type: str
    inputs: tuple[int, ...] = ()
    description: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    stream: StreamKind | None = None


class GraphAnswer(Answer):
    """``sinks``: name -> where it writes. ``tables``: the declarations of the state tables, as in manifests; ``null``
    before an analysis.

    ``warnings``: what is valid and probably not meant, or costs more than it looks, with what to do. ``notes``: which
    operators' states grow with the keys that come.
    """

    name: str
    nodes: tuple[NodeAnswer, ...]
    sinks: dict[str, str]
    tables: tuple[dict[str, Any], ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
