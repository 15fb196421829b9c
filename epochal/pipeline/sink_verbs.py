"""The verb ``write``: checks its arguments, and adds the sink and the sink of its dead letters to the graph."""

from __future__ import annotations

from typing import Final, Literal, get_args

from epochal.declarations.names import check_name
from epochal.errors import PipelineError
from epochal.pipeline.definitions import SinkDefinition, check_choice, check_positive
from epochal.pipeline.graph import Builder, NodeId, Rejects, SinkNode

OnReject = Literal["fail", "dead_letter"]
MAX_REJECTS: Final = 1_000
"""Default of ``max_rejects``."""


def add_sink(
    builder: Builder,
    input: NodeId,
    name: str,
    sink: SinkDefinition,
    on_reject: OnReject,
    dead_letters: SinkDefinition | None,
    max_rejects: int,
) -> None:
    """Arguments as in :meth:`epochal.pipeline.stream.Stream.write`. Raises ``PipelineError``, ``OptionError``."""
    check_name("a sink", name)
    _check_definition(f"Sink {name!r}", sink)
    where = f"write({name!r})"
    check_choice(where, "on_reject", on_reject, get_args(OnReject))
    check_positive(where, "max_rejects", max_rejects, whole=True)
    if on_reject == "fail":
        if dead_letters is not None or max_rejects != MAX_REJECTS:
            raise PipelineError(
                f"{where}: dead_letters and max_rejects are used with on_reject='dead_letter' only. Add it, or remove "
                "them."
            )
    elif dead_letters is None:
        raise PipelineError(
            f"{where}: on_reject='dead_letter' requires the sink of the rejected rows: dead_letters=files.sink(path)."
        )
    builder.claim("sink", name)
    added = builder.add(lambda id: _node(id, name, input, sink))
    if dead_letters is not None:
        rejected = f"{name}-rejected"
        check_name("a sink of dead letters", rejected)
        _check_definition(f"dead_letters of sink {name!r}", dead_letters)
        builder.claim("sink", rejected)
        builder.add(lambda id: _node(id, rejected, added, dead_letters, Rejects(name, max_rejects)))


def _check_definition(what: str, sink: object) -> None:
    if not isinstance(sink, SinkDefinition):
        raise PipelineError(
            f"{what[0].upper()}{what[1:]} is {sink!r}: use a sink of epochal.connectors, such as files.sink(path)."
        )


def _node(id: NodeId, name: str, input: NodeId, sink: SinkDefinition, rejects: Rejects | None = None) -> SinkNode:
    description = {"kind": sink.kind, **sink.description}
    if rejects is not None:
        description |= {"rejected_by": rejects.sink, "max_rejects": rejects.most}
    return SinkNode(
        id,
        name,
        input,
        sink.make,
        sink.takes,
        description,
        sink.deliveries,
        sink.delivery,
        sink.note,
        rejects,
    )
