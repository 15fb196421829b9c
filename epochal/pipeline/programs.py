"""Programs in a pipeline: streams call the entries of an annotated class, and the answers are streams."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epochal.declarations.entry import DAY, REQUEST_ID, Entry
from epochal.declarations.entry import entry as declared_entry
from epochal.declarations.names import check_name, closest, listed, name_of_class
from epochal.errors import PipelineError
from epochal.operators.programs.calls import SERVED_KEPT, FedEntry, ServedEntry, kept_name
from epochal.operators.programs.fed_calls import FedCalls, FedResults
from epochal.operators.programs.plan import ProgramGraph, ProgramOperator
from epochal.operators.programs.ports import spark_type
from epochal.operators.programs.served_calls import ServedAnswer, ServedAnswers, ServedCalls, ServedStream
from epochal.operators.programs.work import Fed
from epochal.pipeline import kinds
from epochal.pipeline.code_lines import line_of_class
from epochal.pipeline.entry_verbs import source_of
from epochal.pipeline.graph import Builder, NodeId, OperatorNode, TransformNode
from epochal.pipeline.parallelism import declared_parallelism
from epochal.pipeline.stream import Stream
from epochal.programs.dataflow import Dispatch
from epochal.programs.translation import translate
from epochal.programs.value_types import NOTHING, Optional


@dataclass(frozen=True)
class _Feed:
    stream: Stream
    order: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class _Served:
    """Calls from outside. ``source``: the source of all calls of the application."""

    entry: Entry
    source: NodeId


class Program:
    """The result of :meth:`Pipeline.program`. Call :meth:`feed` for its entries, then :meth:`results`."""

    def __init__(self, builder: Builder, program: type[Any], name: str | None, parallelism: int | None = None) -> None:
        dataflow = translate(program)
        self._builder = builder
        self._graph = ProgramGraph(program, dataflow)
        self._name = name_of_class(program.__name__) if name is None else name
        self._parallelism = declared_parallelism(self._name, parallelism)
        self._line = line_of_class(program)
        self._prefix = "" if name is None else f"{check_name('a program', name)}-"
        self._fed: dict[str, _Feed | _Served] = {}
        self._last: NodeId | None = None

    def feed(
        self, entry: str, stream: Stream, *, order_by: str | Sequence[str], keep: str | Sequence[str] = ()
    ) -> None:
        """Call an entry for each row of a stream. The stream has a column for each parameter, with its name and type::

            ratings = pipeline.program(Ratings)
            ratings.feed("add_rating", rated, order_by="at")
            ratings.feed("recommend", asked, order_by="at", keep=("user", "at"))

        ``order_by``: the columns that define the order of the calls of an epoch, over all streams that feed the
        program. All streams must use columns of the same types. Calls with equal values are in the order of the entries
        in the class. ``keep``: columns of the stream to add to the results. Feed all entries before the first
        :meth:`results`.
        """
        where = f"Entry {entry!r} of program {self._graph.dataflow.name}"
        self._check_entry(entry)
        if not isinstance(stream, Stream):
            raise PipelineError(f"{where}: feed() takes a stream of this pipeline, not {type(stream).__name__}.")
        if stream._builder is not self._builder:
            raise PipelineError(f"{where}: the stream of feed() belongs to another pipeline.")
        if self._last is not None:
            raise PipelineError(f"{where} is fed after results(). Feed all entries first.")
        if entry in self._fed:
            raise PipelineError(f"{where} is fed twice. Combine the streams with union() and feed it once.")
        order, kept = _names(order_by), _names(keep)
        if not order:
            raise PipelineError(
                f"{where}: feed() requires order_by, the columns that define the order of the calls of an epoch, such "
                "as order_by='at'. Without them the order of reads and writes would be undefined."
            )
        for name in kept:
            if name.casefold() in ("value", "error"):
                raise PipelineError(
                    f"{where}, keep: the results already have a column {name!r}. Rename the column of the stream."
                )
        others = {len(feed.order): each for each, feed in self._fed.items() if isinstance(feed, _Feed)}
        if others and len(order) not in others:
            ((count, other),) = others.items()
            raise PipelineError(
                f"{where} is fed in the order of {listed(order)}, but entry {other!r} by {count} columns. The calls of "
                "all entries have one order, so use the same number of columns, with the same types."
            )
        self._fed[entry] = _Feed(stream, order, kept)

    def serve(self, *entries: str) -> None:
        """Allow calls of these entries from outside: over HTTP, by the client and on the command line.

        Without names, these are all entries that are not fed by a stream. In an epoch these calls come after the calls
        of streams, in order of arrival. Each is answered when its epoch is committed."""
        unfed = [name for name in self._graph.dataflow.entries if name not in self._fed]
        for entry in entries or unfed:
            self._check_entry(entry)
            where = f"Entry {entry!r} of program {self._graph.dataflow.name}"
            if entry in self._fed:
                raise PipelineError(f"{where} is already fed or served. An entry has one source of calls.")
            if self._last is not None:
                raise PipelineError(f"{where} is served after results(). Serve all entries first.")
            self._fed[entry] = self._declared(entry)

    def _declared(self, name: str) -> _Served:
        entry = self._graph.dataflow.entries[name]
        declared = declared_entry(
            self._prefix + name,
            {each: spark_type(type) for each, type in entry.parameter_types.items()},
            [each for each, type in entry.parameter_types.items() if isinstance(type, Optional)],
            self._returns(name),
            inspect.getdoc(getattr(self._graph.program, name)) or "",
        )
        return _Served(declared, source_of(self._builder, declared))

    def results(self, entry: str) -> Stream:
        """The answers of an entry, one row per call: the columns of ``keep``, ``value``, and ``error``, the exception
        of the call (``KeyError: 'x'``). An entry that returns None has no ``value``."""
        self._check_entry(entry)
        if entry not in self._fed:
            raise PipelineError(
                f"Entry {entry!r} of program {self._graph.dataflow.name} has no calls and therefore no results. Call "
                f"feed({entry!r}, stream, order_by=..) or serve({entry!r}) first."
            )
        self._graph.read.add(entry)
        chosen = FedResults(self._graph.ports.answers[entry], self._kept(entry))
        last = self.complete()
        label = f"results of {entry}"
        return Stream(
            self._builder,
            self._builder.add(lambda id: TransformNode(id, label, (last,), chosen, kinds.kept)),
        )

    def complete(self) -> NodeId:
        """Add the operators, once. Returns the last one. Raises ``PipelineError`` if the program has no calls."""
        if self._last is not None:
            return self._last
        if not self._fed:
            raise PipelineError(
                f"Program {self._graph.dataflow.name} has no calls. Use feed(entry, stream, order_by=..) or "
                "serve(entry) for "
                f"one of its entries, {listed(self._graph.dataflow.entries)}."
            )
        self._graph.called.update(self._fed)
        last: NodeId | None = None
        for number in self._stages():
            last = self._add_stage(number, last)
        assert last is not None
        self._last = last
        served = [name for name, feed in self._fed.items() if isinstance(feed, _Served)]
        if served:
            self._answer(served, last)
        return last

    def _kept(self, entry: str) -> dict[str, str]:
        """The additional columns of its results, and the internal columns that contain them."""
        feed = self._fed[entry]
        if isinstance(feed, _Served):
            return {REQUEST_ID.name: SERVED_KEPT[0]}
        return {name: kept_name(self._number(entry), position) for position, name in enumerate(feed.kept)}

    def _answer(self, served: Sequence[str], last: NodeId) -> None:
        self._graph.read.update(served)
        answers = tuple(
            ServedAnswer(self._prefix + name, self._graph.ports.answers[name], self._returns(name)) for name in served
        )
        chosen, label = ServedAnswers(answers, DAY), f"answers of {self._graph.dataflow.name}"
        self._builder.add(lambda id: TransformNode(id, label, (last,), chosen, kinds.kept), self._line)

    def _add_stage(self, number: int, before: NodeId | None) -> NodeId:
        stage = self._graph.dataflow.stages[number]
        begin = [name for name in self._fed if self._graph.dataflow.entries[name].target in stage.tasks]
        streams = [self._calls(name, feed) for name in begin if isinstance(feed := self._fed[name], _Feed)]
        served = self._served_together([name for name in begin if isinstance(self._fed[name], _Served)])
        streams += map(self._calls_of_all, served)
        fed = tuple(entries for entries, _ in streams)
        inputs = (*(calls for _, calls in streams), *([] if before is None else [before]))
        operator = ProgramOperator(self._stage_name(number), self._graph, number, fed, before is not None, self._name)
        self._builder.claim("operator", operator.name)
        return self._builder.add(lambda id: OperatorNode(id, inputs, operator, self._parallelism), self._line)

    def _calls(self, entry: str, feed: _Feed) -> tuple[Fed, NodeId]:
        """The calls from a stream."""
        declared = self._graph.dataflow.entries[entry]
        types = {name: spark_type(type) for name, type in declared.parameter_types.items()}
        named = self._key_of_call(entry)
        key = list(types).index(named) if isinstance(named, str) else named
        calls = FedCalls(entry, self._number(entry), types, self._returns(entry), feed.order, feed.kept, key)
        label = f"calls of {entry}"
        node = self._builder.add(
            lambda id: TransformNode(id, label, (feed.stream._node,), calls, kinds.kept), self._line
        )
        return (FedEntry(entry, self._number(entry), len(feed.order), len(feed.kept)),), node

    def _served_together(self, entries: Sequence[str]) -> list[list[str]]:
        """Groups of entries whose calls have the same distribution."""
        alike: dict[tuple[bool, str | None], list[str]] = {}
        for name in entries:
            edge = self._graph.edge_of(name)
            key = self._graph.keyed_by(edge)
            alike.setdefault((edge.dispatch is Dispatch.ALL, None if key is None else key.type), []).append(name)
        return list(alike.values())

    def _calls_of_all(self, entries: Sequence[str]) -> tuple[Fed, NodeId]:
        """The calls of these entries from outside."""
        feeds = {name: feed for name in entries if isinstance(feed := self._fed[name], _Served)}
        served = [
            ServedCalls(feed.entry, name, self._number(name), self._key_of_call(name)) for name, feed in feeds.items()
        ]
        (source,) = {feed.source for feed in feeds.values()}
        calls, label = ServedStream(tuple(served)), f"calls of {', '.join(entries)}"
        node = self._builder.add(lambda id: TransformNode(id, label, (source,), calls, kinds.kept), self._line)
        fields = {name: [field.name for field in self._graph.edge_of(name).fields] for name in entries}
        columns = {name: tuple(calls.arguments[name][field] for field in fields[name]) for name in entries}
        return tuple(ServedEntry(name, self._number(name), columns[name]) for name in entries), node

    def _returns(self, entry: str) -> str | None:
        answer = self._graph.dataflow.entries[entry].answer
        return None if answer is NOTHING else spark_type(answer)

    def _key_of_call(self, entry: str) -> str | tuple[Any, str] | None:
        """The parameter that distributes calls, or a constant and its type; ``None``: any distribution."""
        edge = self._graph.edge_of(entry)
        key = self._graph.keyed_by(edge)
        if key is None or edge.key is None:
            return None
        named = edge.key in self._graph.dataflow.entries[entry].parameter_types
        return edge.key if named else (ast.literal_eval(edge.key), key.type)

    def _stages(self) -> list[int]:
        """The stages that calls of the fed entries reach."""
        reached = {self._graph.dataflow.entries[name].target for name in self._fed}
        for edge in sorted(self._graph.dataflow.edges, key=lambda edge: self._stage_of(edge.target)):
            if edge.source in reached:
                reached.add(edge.target)
        return sorted({self._stage_of(task) for task in reached})

    def _stage_of(self, task: int) -> int:
        return next(number for number, stage in enumerate(self._graph.dataflow.stages) if task in stage.tasks)

    def _stage_name(self, number: int) -> str:
        stage = self._graph.dataflow.stages[number]
        name = stage.element or self._graph.dataflow.tasks[stage.tasks[0]].id.replace(".", "-").lower()
        return self._prefix + check_name("a state element that is an operator of a pipeline", name)

    def _number(self, entry: str) -> int:
        return list(self._graph.dataflow.entries).index(entry)

    def _check_entry(self, entry: str) -> None:
        entries = self._graph.dataflow.entries
        if entry not in entries:
            raise PipelineError(
                f"Program {self._graph.dataflow.name} has no entry {entry!r}; it has {listed(entries)}."
                f"{closest(str(entry), entries)}"
            )


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
