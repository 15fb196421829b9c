"""Execution of task elements: the processing of the rows of a stage at one instance.

An operator makes all accesses in the order of calls: rows of all inputs are sorted by ``(sequence, index)``. So each
element of state is accessed by one call after the other. Because all calls visit operators in the same order, the
result is that of a sequential run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from epochal.programs.conforming import CHECKS, compiled
from epochal.programs.dataflow import Dataflow, Dispatch, Edge, Stage, TaskElement
from epochal.programs.declaration import declared
from epochal.programs.rows import Answer as Answer
from epochal.programs.rows import Arrival as Arrival
from epochal.programs.rows import Crossing, Outlet, Results, Sending, Writing
from epochal.programs.rows import Departure as Departure
from epochal.programs.rows import Failed as Failed
from epochal.programs.state import State
from epochal.programs.task_code import CROSS
from epochal.programs.value_types import INTEGERS, Optional, ValueType


class Executable:
    """The compiled task elements of a dataflow. ``program``: the class, whose other methods are called."""

    def __init__(self, dataflow: Dataflow, program: type[Any]) -> None:
        self.dataflow = replace(dataflow, tasks=tuple(replace(task, function=None) for task in dataflow.tasks))
        self._program = program
        self._self = object.__new__(program)
        self._functions = {
            task.number: self._compiled(task, program) for task in dataflow.tasks if task.function is not None
        }

    def call(self, entry: str, sequence: int, arguments: dict[str, Any]) -> Departure | Answer:
        """The row of a call, or its answer if the arguments have invalid types."""
        of = self.dataflow.entries[entry]
        declared_entry = declared(self._program).entries[entry]
        (edge,) = (each for each in self.dataflow.into(of.target) if each.source is None)
        try:
            values = declared_entry.arguments((), arguments)
        except (TypeError, OverflowError) as error:
            return Answer(sequence, Failed.of(error))
        row = tuple(type.to_row(values[name]) for name, type in of.parameter_types.items())
        constant = None if edge.key is None or edge.key in values else _constant(edge.key)
        return Departure(edge.number, sequence, row, key=values.get(edge.key or "", constant))

    def run(
        self, stage: Stage, arrivals: Iterable[Arrival], state: State | None, instances: int = 1
    ) -> list[Departure | Answer]:
        """Process all rows of an epoch at one instance of a stage. ``state``: the state of the instance, which is
        changed; ``instances``: the number of instances that send rows to gather."""
        rows, results = sorted(arrivals, key=attrgetter("sequence", "index", "instance")), Results()
        if self.gathers(stage):
            self.gather(rows, state, results, instances)
        else:
            kinds = sorted({(row.edge, row.method or "") for row in rows})
            numbers = {kind: number for number, kind in enumerate(kinds)}
            numbered = ((numbers[row.edge, row.method or ""], row.sequence, row.sent) for row in rows)
            self.serve(
                [(self.dataflow.edges[edge], method or None) for edge, method in kinds], numbered, state, results
            )
        return results.all

    def gather(self, rows: Iterable[Arrival], state: State | None, outlet: Outlet, instances: int) -> None:
        """Like :meth:`run`, for a stage that gathers rows of several instances. ``rows`` are ordered."""
        work = StageRows(self.dataflow, self._functions, self._self, state, outlet)
        for sequence, together in groupby(rows, key=attrgetter("sequence")):
            work.gather(sequence, list(together), instances)

    def serve(
        self,
        kinds: Sequence[tuple[Edge, str | None]],
        rows: Iterable[tuple[int, int, Sequence[Any]]],
        state: State | None,
        outlet: Outlet,
    ) -> None:
        """Like :meth:`run`, for a stage without gathering. ``kinds``: edges, with the methods of fan-outs; ``rows``:
        the number of the kind, the sequence and the values of each row, ordered."""
        work = StageRows(self.dataflow, self._functions, self._self, state, outlet)
        handlers = [work.handler(edge, method) for edge, method in kinds]
        for kind, sequence, values in rows:
            handlers[kind](sequence, values)

    def gathers(self, stage: Stage) -> bool:
        """Return whether the stage gathers rows of several instances."""
        return any(edge.dispatch is Dispatch.GATHER for edge in self._edges_into(stage))

    def _edges_into(self, stage: Stage) -> list[Edge]:
        return [edge for edge in self.dataflow.edges if edge.target in stage.tasks]

    def _compiled(self, task: TaskElement, program: type[Any]) -> Any:
        entry = declared(program).entries[task.entry]
        names = {CHECKS: entry.checks, CROSS: Crossing}
        assert task.function is not None
        return compiled(task.function, self.dataflow.file, {**entry.function.__globals__, **names})


def _constant(text: str) -> Any:
    return ast.literal_eval(text)


Handler = Callable[[int, Sequence[Any]], None]
"""Processes a row of an edge, given the number of its call and its values."""
_Converter = Callable[[Any], Any]


class StageRows:
    """The processing of rows at one instance of a stage; values that are equal for all rows are computed once.

    ``functions``: the task elements, by number; ``program``: the object whose methods they call; ``outlet``: their
    output."""

    def __init__(
        self, dataflow: Dataflow, functions: Mapping[int, Any], program: Any, state: State | None, outlet: Outlet
    ) -> None:
        self._dataflow, self._functions, self._program = dataflow, functions, program
        self._state, self._outlet = state, outlet
        self._fan_out = _FanOut(dataflow, outlet)
        self._gathering: dict[int, Handler] = {}

    def handler(self, edge: Edge, method: str | None = None) -> Handler:
        """The handler of rows of an edge, or of a fan-out by this method."""
        if method is not None:
            return self._writing(edge, method)
        run = self._running(edge)
        converters = _converters([field.type for field in edge.fields], back=True)
        if edge.source is not None:
            if converters is None:
                return run
            return lambda sequence, values: run(sequence, _converted(values, converters))
        plain = converters is None and not any(_takes_none(field.type) for field in edge.fields)
        answer = self._outlet.answering(edge)

        def call(sequence: int, values: Sequence[Any]) -> None:
            if plain and None not in values:
                run(sequence, values)
                return
            arguments = _arguments(edge, values)
            if isinstance(arguments, Failed):
                answer(sequence, arguments)
            else:
                run(sequence, arguments)

        return call

    def gather(self, sequence: int, rows: Sequence[Arrival], instances: int) -> None:
        """Process the rows of a call from all instances. If an instance has failed, its error is the answer."""
        edge = self._dataflow.edges[rows[0].edge]
        failed = next((row.values for row in rows if isinstance(row.values, Failed)), None)
        if failed is not None:
            self._outlet.answering(edge)(sequence, failed)
        elif len(rows) == instances:  # otherwise an instance has failed
            converters = _converters([field.type for field in edge.fields], back=True)
            each = [_converted(row.sent, converters) for row in rows]
            several = self._dataflow.tasks[edge.target].gathered
            columns = zip(edge.fields, zip(*each, strict=True), strict=True)
            values = [list(column) if field.name in several else column[0] for field, column in columns]
            if edge.number not in self._gathering:
                self._gathering[edge.number] = self._running(edge)
            self._gathering[edge.number](sequence, values)

    def _running(self, edge: Edge) -> Handler:
        task = self._dataflow.tasks[edge.target]
        type = self._dataflow.entries[task.entry].answer
        to_row = None if _is_plain(type) else type.to_row
        order = [task.parameters.index(field.name) for field in edge.fields]
        if order != sorted(order):
            raise AssertionError(f"{task.id}: the fields of an edge are not in the order of the parameters")
        fan_out, answer, fail = self._fan_out, self._outlet.answering(edge), self._failing(edge)
        function = partial(self._functions[edge.target], self._program, self._state, fan_out)
        leaving = {each.number: self._crossing(each) for each in self._dataflow.out_of(edge.target) if not each.fan_out}

        def run(sequence: int, values: Sequence[Any]) -> None:
            fan_out.sequence, fan_out.index = sequence, 0
            try:
                result = function(*values)
            except Exception as error:  # noqa: BLE001 # whatever the author's code raises is what the call answers
                fail(sequence, Failed.of(error))
                return
            if isinstance(result, Crossing):
                send, converters = leaving[result.edge]
                send(sequence, result.key, _converted(result.values, converters))
            else:
                answer(sequence, result if to_row is None else to_row(result))

        return run

    def _crossing(self, edge: Edge) -> tuple[Sending, list[_Converter | None] | None]:
        return self._outlet.sending(edge), _converters([field.type for field in edge.fields])

    def _failing(self, edge: Edge) -> Callable[[int, Failed], None]:
        """Answer a failed call; if the call has a barrier later, the barrier answers it."""
        if edge.dispatch is Dispatch.ALL:
            after = self._dataflow.out_of(edge.target)
            barrier = next((each for each in after if each.dispatch is Dispatch.GATHER), None)
            if barrier is not None:
                send = self._outlet.sending(barrier)
                return lambda sequence, failed: send(sequence, None, failed)
        return self._outlet.answering(edge)

    def _writing(self, edge: Edge, method: str) -> Handler:
        types = self._dataflow.tasks[edge.target].writes[method].parameter_types
        apply, converters = getattr(self._state, method), _converters(list(types.values()), back=True)
        if converters is None:
            return lambda _, values: apply(*values)
        return lambda _, values: apply(*_converted(values, converters))


class _FanOut:
    """The function that the code of a fan-out calls: it outputs a row for each write. ``sequence``: sequence of the
    call; ``index``: the number of its rows."""

    def __init__(self, dataflow: Dataflow, outlet: Outlet) -> None:
        self.sequence = self.index = 0
        self._dataflow, self._outlet = dataflow, outlet
        self._methods: dict[tuple[int, str], tuple[_Method, Writing]] = {}

    def __call__(self, edge: int, method: str, *arguments: Any, **named: Any) -> None:
        found = self._methods.get((edge, method))
        if found is None:
            along = self._dataflow.edges[edge]
            of = _Method(self._dataflow, along, method)
            found = self._methods[edge, method] = of, self._outlet.writing(along, method, of.key)
        of, write = found
        write(self.sequence, self.index, of.row(arguments, named))
        self.index += 1


class _Method:
    """A method of a fan-out. It is called on temporary state, so that invalid arguments fail at the same statement as
    in Python."""

    def __init__(self, dataflow: Dataflow, edge: Edge, method: str) -> None:
        target = dataflow.tasks[edge.target]
        element = dataflow.elements[target.element or ""]
        types = target.writes[method].parameter_types
        access = element.kind.access(method)
        assert access is not None
        self._element, self._method = element, method
        self._names, self._types = list(types), list(types.values())
        self._converters = _converters(self._types)
        self._defaults = getattr(element.kind, method).__defaults__ or ()
        self._fit: set[tuple[type, ...]] = set()
        """The types whose values are all valid arguments, except for integers of more than 64 bits."""
        self._any_value = access.any_value
        self.key = self._names.index(access.key[element.by or ""])

    def row(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments of a write, in the form of rows. Raises the errors of the method."""
        kinds = tuple(map(type, positional))
        if named or kinds not in self._fit or (int in kinds and not _within(positional)):
            return self._checked(kinds, positional, named)
        missing = len(self._names) - len(positional)
        return (*positional, *self._defaults[-missing:]) if missing else positional

    def _checked(self, kinds: tuple[type, ...], positional: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[Any]:
        bound = self._element.kind.bind(self._method, positional, named)
        arguments = [bound[name] for name in self._names]
        getattr(self._element.make(), self._method)(*arguments)
        triples = zip(self._types, arguments, self._names, strict=True)
        values = [type.conform(value, name) for type, value, name in triples]
        if self._any_value and not named and self._converters is None and all(map(_same, values, arguments)):
            self._fit.add(kinds)
        return _converted(values, self._converters)


def _within(values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110 # twice as fast
        if type(value) is int and value not in INTEGERS:
            return False
    return True


def _same(value: Any, other: Any) -> bool:
    return value is other and value is not None


def _arguments(edge: Edge, sent: Sequence[Any]) -> Sequence[Any] | Failed:
    """The arguments of a call; an error becomes the answer."""
    try:
        return [
            field.type.conform(None if value is None else field.type.from_row(value), field.name)
            for field, value in zip(edge.fields, sent, strict=True)
        ]
    except (TypeError, OverflowError) as error:
        return Failed.of(error)


def _is_plain(type: ValueType) -> bool:
    """Return whether values of the type are unchanged in rows."""
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
    """Converters to or from the form of rows; ``None`` for unchanged values, and if all are unchanged."""
    found: list[_Converter | None] = [
        None if _is_plain(type) else (type.from_row if back else type.to_row) for type in types
    ]
    return None if all(each is None for each in found) else found


def _converted(values: Sequence[Any], converters: list[_Converter | None] | None) -> Sequence[Any]:
    if converters is None:
        return values
    return [value if each is None else each(value) for each, value in zip(converters, values, strict=True)]
