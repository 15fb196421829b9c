"""A stream beside a control stream: what ``connect`` gives."""

from __future__ import annotations

from typing import Any

from epochal.declarations.broadcast import BroadcastProcess, check_broadcast
from epochal.declarations.keyed import with_settings
from epochal.operators.process.broadcast_plan import ProcessBroadcastOperator
from epochal.pipeline.keyed_stream import KeyedStream
from epochal.pipeline.other_names import CONNECTED, NamesVerbs
from epochal.pipeline.stream import Stream, of_operator, operator_name, operator_stream


class ConnectedStreams(NamesVerbs):
    """A stream and its control stream."""

    _other_names = CONNECTED

    def __init__(self, stream: Stream, control: Stream, order_by: tuple[str, ...]) -> None:
        self._stream = stream
        self._control = control
        self._order_by = order_by

    def key_by(self, *columns: str) -> ConnectedKeyedStreams:
        """Group the stream, not its control stream, by these columns. As :meth:`Stream.key_by`."""
        return ConnectedKeyedStreams(self._stream.key_by(*columns), self._control, self._order_by)


class ConnectedKeyedStreams(NamesVerbs):
    """A keyed stream and its control stream."""

    _other_names = CONNECTED

    def __init__(self, stream: KeyedStream, control: Stream, order_by: tuple[str, ...]) -> None:
        self._stream = stream
        self._control = control
        self._order_by = order_by

    def process(self, process: type[BroadcastProcess], name: str | None = None, **settings: Any) -> Stream:
        """Call ``process_broadcast`` for each control row on every subtask, then ``process`` for each key.

        State tables: ``name.state``; the name is the class's, if not given. ``settings`` replace class attributes.
        """
        operator = operator_name(name, process)
        with of_operator(operator):
            check_broadcast(process)
            configured = with_settings(process, settings)
        stream = self._stream
        return operator_stream(
            stream._builder,
            (stream._node, self._control._node),
            ProcessBroadcastOperator(operator, stream._keys, self._order_by, configured),
        )
