"""The rows of one chunk at one instance of a stage: what is the same for all of them is found before the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epochal.programs.dataflow import Dataflow, Dispatch, Edge
from epochal.programs.rows import Answer, Answered, Arrival, Crossing, Departure, Failed
from epochal.programs.state import State
from epochal.programs.value_types import Optional, ValueType

Emit = Callable[["Departure | Answer"], None]
Handler = Callable[[int, Sequence[Any]], None]
"""What to do with a row of an edge: the number of its call, and its values."""
_Converter = Callable[[Any], Any]


class StageRows:
    """``functions``: of task elements, by number; ``program``: what they call methods of; ``emit`` takes what leaves
    them."""

    def __init__(
        self, dataflow: Dataflow, functions: Mapping[int, Any], program: Any, state: State | None, emit: Emit
    ) -> None:
        self._dataflow, self._functions, self._program = dataflow, functions, program
        self._state, self._emit = state, emit
        self._send = _Sender(dataflow, emit)
        self._leaving = {edge.number: _converters([field.type for field in edge.fields]) for edge in dataflow.edges}

    def handler(self, edge: Edge) -> Handler:
        """What to do with a row of an edge."""
        if edge.fan_out:
            return self._writing(edge)
        run = self._running(edge)
        converters = _converters([field.type for field in edge.fields], back=True)
        if edge.source is not None:
            if converters is None:
                return run
            return lambda sequence, values: run(sequence, _converted(values, converters))
        plain = converters is None and not any(_takes_none(field.type) for field in edge.fields)
        emit = self._emit

        def call(sequence: int, values: Sequence[Any]) -> None:
            if plain and None not in values:
                run(sequence, values)
                return
            arguments = _arguments(edge, values)
            if isinstance(arguments, Failed):
                emit(Answer(sequence, arguments))
            else:
                run(sequence, arguments)

        return call

    def gather(self, sequence: int, rows: Sequence[Arrival], instances: int) -> None:
        """The rows that all instances have of a call. Where one has failed, that is the answer."""
        failed = next((row.values for row in rows if isinstance(row.values, Failed)), None)
        if failed is not None:
            self._emit(Answer(sequence, failed))
        elif len(rows) == instances:  # otherwise an instance has failed elsewhere
            edge = self._dataflow.edges[rows[0].edge]
            converters = _converters([field.type for field in edge.fields], back=True)
            each = [_converted(row.sent, converters) for row in rows]
            several = self._dataflow.tasks[edge.target].gathered
            columns = zip(edge.fields, zip(*each, strict=True), strict=True)
            values = [list(column) if field.name in several else column[0] for field, column in columns]
            self._running(edge)(sequence, values)

    def _running(self, edge: Edge) -> Handler:
        task = self._dataflow.tasks[edge.target]
        answer = self._dataflow.entries[task.entry].answer
        to_row = None if _is_plain(answer) else answer.to_row
        order = [task.parameters.index(field.name) for field in edge.fields]
        if order != sorted(order):
            raise AssertionError(f"{task.id}: the fields of an edge are not in the order of the parameters")
        function, program, state = self._functions[edge.target], self._program, self._state
        send, emit, leaving = self._send, self._emit, self._leaving
        barrier = self._barrier(edge)

        def run(sequence: int, values: Sequence[Any]) -> None:
            send.sequence, send.index = sequence, 0
            try:
                result = function(program, state, send, *values)
            except Exception as error:  # noqa: BLE001 # whatever the author's code raises is what the call answers
                failed = Failed.of(error)
                emit(Answer(sequence, failed) if barrier is None else Departure(barrier, sequence, failed))
                return
            if isinstance(result, Answered):
                value = result.value
                emit(Answer(sequence, value if to_row is None else to_row(value)))
            else:
                assert isinstance(result, Crossing)
                sent = _converted(result.values, leaving[result.edge])
                emit(Departure(result.edge, sequence, tuple(sent), key=result.key))

        return run

    def _barrier(self, edge: Edge) -> int | None:
        """Where instances meet of which one may fail while others go on."""
        if edge.dispatch is not Dispatch.ALL:
            return None
        after = self._dataflow.out_of(edge.target)
        return next((each.number for each in after if each.dispatch is Dispatch.GATHER), None)

    def _writing(self, edge: Edge) -> Handler:
        writes = {
            method: (getattr(self._state, method), _converters(list(write.parameter_types.values()), back=True))
            for method, write in self._dataflow.tasks[edge.target].writes.items()
        }

        def write(_: int, values: Sequence[Any]) -> None:
            apply, converters = writes[values[0]]
            apply(*_converted(values[1:], converters))

        return write


class _Sender:
    """What a fan-out calls: a row for each write. What is wrong with its arguments is found where Python would find it:
    the method is called on state that nobody sees."""

    def __init__(self, dataflow: Dataflow, emit: Emit) -> None:
        self.sequence = self.index = 0
        self._dataflow, self._emit = dataflow, emit
        self._methods: dict[tuple[int, str], _Method] = {}

    def __call__(self, edge: int, method: str, *arguments: Any, **named: Any) -> None:
        found = self._methods.get((edge, method))
        if found is None:
            found = self._methods[edge, method] = _Method(self._dataflow, edge, method)
        values = found.arguments(arguments, named)
        row = (method, *_converted(values, found.converters))
        self._emit(Departure(edge, self.sequence, row, self.index, values[found.key]))
        self.index += 1


class _Method:
    """A method that a fan-out writes by."""

    def __init__(self, dataflow: Dataflow, edge: int, method: str) -> None:
        target = dataflow.tasks[dataflow.edges[edge].target]
        element = dataflow.elements[target.element or ""]
        types = target.writes[method].parameter_types
        access = element.kind.access(method)
        assert access is not None
        self._kind, self._method, self._names = element.kind, method, list(types)
        self._types = list(types.items())
        self._defaults = getattr(element.kind, method).__defaults__ or ()
        self._least = len(self._names) - len(self._defaults)
        self._scratch = getattr(element.make(), method)
        self.converters = _converters(list(types.values()))
        self.key = self._names.index(access.key[element.by or ""])

    def arguments(self, positional: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        if not named and len(positional) >= self._least:
            positional = (*positional, *self._defaults[len(positional) - self._least :])
        if named or len(positional) != len(self._names):
            bound = self._kind.bind(self._method, positional, named)
            positional = [bound[name] for name in self._names]
        self._scratch(*positional)
        return [type.conform(value, name) for (name, type), value in zip(self._types, positional, strict=True)]


def _arguments(edge: Edge, sent: Sequence[Any]) -> Sequence[Any] | Failed:
    """The arguments of a call; what is wrong with them is what it answers."""
    try:
        return [
            field.type.conform(None if value is None else field.type.from_row(value), field.name)
            for field, value in zip(edge.fields, sent, strict=True)
        ]
    except (TypeError, OverflowError) as error:
        return Failed.of(error)


def _is_plain(type: ValueType) -> bool:
    """Whether its values stand in rows as they are."""
    if isinstance(type, Optional):
        return _is_plain(type.inner)
    return type.to_row.__func__ is ValueType.to_row and type.from_row.__func__ is ValueType.from_row  # type: ignore[attr-defined]


def _takes_none(type: ValueType) -> bool:
    try:
        type.conform(None, "a value")
    except TypeError:
        return False
    return True


def _converters(types: Sequence[ValueType], back: bool = False) -> list[_Converter | None] | None:
    """To what stands in rows, or back from it; ``None`` for what stays as it is, and where all does."""
    found: list[_Converter | None] = [
        None if _is_plain(type) else (type.from_row if back else type.to_row) for type in types
    ]
    return None if all(each is None for each in found) else found


def _converted(values: Sequence[Any], converters: list[_Converter | None] | None) -> Sequence[Any]:
    if converters is None:
        return values
    return [value if each is None else each(value) for each, value in zip(converters, values, strict=True)]
