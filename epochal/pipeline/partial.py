"""Streams on partial state: what ``process_partial`` adds to the graph, and gives."""

from __future__ import annotations

from typing import Any

from epochal.declarations.keyed import with_settings
from epochal.declarations.partial import PartialProcess, check_partial
from epochal.errors import PipelineError
from epochal.operators.process.partial_plan import MergeAnswersOperator, ProcessPartialOperator
from epochal.pipeline.stream import Stream, of_operator, operator_name, operator_stream


class MergedStream(Stream):
    """What comes of merging the answers of all instances."""

    def __init__(self, merged: Stream, instances: Stream) -> None:
        super().__init__(merged._builder, merged._node)
        self._instances = instances

    def side(self, name: str) -> Stream:
        """As of what the instances give: merging has no sides."""
        return self._instances.side(name)


def process_partial(
    rows: Stream, process: type[PartialProcess], requests: Stream | None, name: str | None, settings: dict[str, Any]
) -> Stream:
    """As :meth:`Stream.process_partial`."""
    operator = operator_name(name, process)
    with of_operator(operator):
        check_partial(process, requests is not None)
        configured = with_settings(process, settings)
        inputs = (rows._node,) if requests is None else (_checked(rows, requests)._node, rows._node)
    partial = ProcessPartialOperator(operator, configured, has_requests=requests is not None)
    instances = operator_stream(rows._builder, inputs, partial)
    if configured.answer is None:
        return instances
    merging = MergeAnswersOperator(f"{operator}-merge", configured)
    return MergedStream(operator_stream(rows._builder, (instances._node,), merging), instances)


def _checked(rows: Stream, requests: Stream) -> Stream:
    if not isinstance(requests, Stream):
        raise PipelineError(f"requests is a stream of this pipeline, not {type(requests).__name__}.")
    rows._check_same_pipeline(requests, "process_partial")
    return requests
