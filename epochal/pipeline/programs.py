"""Programs in a pipeline: streams feed the entries of an annotated class, and its answers are streams."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.declarations.entries import DAY
from epochal.declarations.names import check_name, closest, listed
from epochal.errors import PipelineError
from epochal.operators.program import ProgramGraph, ProgramOperator
from epochal.operators.program_streams import AnswersOf, AnswersOfEntry, CallsOf, ResultsOf
from epochal.pipeline import verb_kinds
from epochal.pipeline.entries import declare
from epochal.pipeline.graph import NodeId, OperatorNode, TransformNode
from epochal.pipeline.stream import Stream
from epochal.programs.dataflow import Edge
from epochal.programs.translation import translate
from epochal.programs.value_types import NOTHING, Optional
from epochal.tasks.program_calls import FedEntry
from epochal.tasks.program_ports import spark_type

if TYPE_CHECKING:
    from epochal.pipeline.pipeline import Builder


@dataclass(frozen=True)
class _Feed:
    stream: Stream
    order: tuple[str, ...]
    kept: tuple[str, ...]
    served: bool = False


class Program:
    """What :meth:`Pipeline.program` gives: :meth:`feed` its entries, then take :meth:`results`."""

    def __init__(self, builder: Builder, program: type[Any], name: str | None) -> None:
        dataflow = translate(program)
        self._builder = builder
        self._graph = ProgramGraph(program, dataflow)
        self._prefix = "" if name is None else f"{check_name('a program', name)}-"
        self._fed: dict[str, _Feed] = {}
        self._last: NodeId | None = None

    def feed(
        self, entry: str, stream: Stream, *, order_by: str | Sequence[str], keep: str | Sequence[str] = ()
    ) -> None:
        """Let each row of a stream be a call of an entry: it has a column for each parameter, of its name and type::

            ratings = pipeline.program(Ratings)
            ratings.feed("add_rating", rated, order_by="at")
            ratings.feed("recommend", asked, order_by="at", keep=("user", "at"))

        ``order_by``: the columns that say in which order the calls of an epoch are, over all streams that feed the
        program; all name columns of the same types. Calls that are equal there are in the order of the entries in the
        class. ``keep``: columns that its results have beside. Feed all entries before the first :meth:`results`.
        """
        where = f"Entry {entry!r} of program {self._graph.dataflow.name}"
        self._check_entry(entry)
        if not isinstance(stream, Stream):
            raise PipelineError(f"{where}: feed() takes a stream of this pipeline, not {type(stream).__name__}.")
        if stream._builder is not self._builder:
            raise PipelineError(f"{where}: feed() was given a stream of another pipeline.")
        if self._last is not None:
            raise PipelineError(f"{where} is fed after results() were taken: feed all entries first.")
        if entry in self._fed:
            raise PipelineError(f"{where} is fed twice: union() the streams, and feed it once.")
        order, kept = _names(order_by), _names(keep)
        if not order:
            raise PipelineError(
                f"{where}: feed() needs order_by, the columns that say in which order the calls of an epoch are, such "
                "as order_by='at'. Without them what is read and written first would be left to chance."
            )
        for name in kept:
            if name.casefold() in ("value", "error"):
                raise PipelineError(f"{where}, keep: its results have a column {name!r} already. Rename the stream's.")
        others = {len(feed.order): each for each, feed in self._fed.items() if not feed.served}
        if others and len(order) not in others:
            ((count, other),) = others.items()
            raise PipelineError(
                f"{where} is fed in the order of {listed(order)}, and entry {other!r} of {count} columns: the calls of "
                "all entries are in one order, so that all name as many columns, of the same types."
            )
        self._fed[entry] = _Feed(stream, order, kept)

    def serve(self, *entries: str) -> None:
        """Let these entries be called from outside, over HTTP, by the client and on the command line, each under its
        name; without names, all that no stream feeds. The calls of an epoch come after those of streams, in the order
        in which they have arrived; each is answered when its epoch is committed."""
        unfed = [name for name in self._graph.dataflow.entries if name not in self._fed]
        for entry in entries or unfed:
            self._check_entry(entry)
            where = f"Entry {entry!r} of program {self._graph.dataflow.name}"
            if entry in self._fed:
                raise PipelineError(f"{where} is fed or served already: its calls come one way.")
            if self._last is not None:
                raise PipelineError(f"{where} is served after results() were taken: serve all entries first.")
            self._fed[entry] = _Feed(self._calls_of(entry), ("sequence",), ("request_id",), served=True)

    def _calls_of(self, name: str) -> Stream:
        """The calls of an entry from outside."""
        entry = self._graph.dataflow.entries[name]
        return declare(
            self._builder,
            self._prefix + name,
            {each: spark_type(type) for each, type in entry.parameter_types.items()},
            [each for each, type in entry.parameter_types.items() if isinstance(type, Optional)],
            self._returns(name),
            inspect.getdoc(getattr(self._graph.program, name)) or "",
        )

    def results(self, entry: str) -> Stream:
        """What the calls of an entry answer, a row for each: the columns of ``keep``, ``value``, and ``error``, which
        says what the call has raised (``KeyError: 'x'``). An entry that answers None has no ``value``."""
        self._check_entry(entry)
        if entry not in self._fed:
            raise PipelineError(
                f"Nothing feeds entry {entry!r} of program {self._graph.dataflow.name}, so that it answers nothing: "
                f"feed({entry!r}, stream, order_by=..) or serve({entry!r}) first."
            )
        self._graph.read.add(entry)
        chosen = ResultsOf(self._graph.ports.answers[entry], self._number(entry), self._fed[entry].kept)
        last = self.complete()
        label = f"results of {entry}"
        return Stream(
            self._builder,
            self._builder.add(lambda id: TransformNode(id, label, (last,), chosen, verb_kinds.kept)),
        )

    def complete(self) -> NodeId:
        """Add the operators, once; returns the last one. Raises ``PipelineError`` where nothing feeds the program."""
        if self._last is not None:
            return self._last
        if not self._fed:
            raise PipelineError(
                f"Nothing feeds program {self._graph.dataflow.name}: feed(entry, stream, order_by=..) or serve(entry) "
                f"one of its entries, {listed(self._graph.dataflow.entries)}."
            )
        self._graph.called.update(self._fed)
        last: NodeId | None = None
        for number in self._stages():
            last = self._add_stage(number, last)
        assert last is not None
        self._last = last
        served = [name for name, feed in self._fed.items() if feed.served]
        if served:
            self._answer(served, last)
        return last

    def _answer(self, served: Sequence[str], last: NodeId) -> None:
        self._graph.read.update(served)
        answers = tuple(
            AnswersOfEntry(
                self._prefix + name, self._graph.ports.answers[name], self._number(name), self._returns(name)
            )
            for name in served
        )
        chosen, label = AnswersOf(answers, DAY), f"answers of {self._graph.dataflow.name}"
        self._builder.add(lambda id: TransformNode(id, label, (last,), chosen, verb_kinds.kept))

    def _add_stage(self, number: int, before: NodeId | None) -> NodeId:
        stage = self._graph.dataflow.stages[number]
        begin = [name for name in self._fed if self._graph.dataflow.entries[name].target in stage.tasks]
        fed = tuple(
            FedEntry(name, self._number(name), len(feed.order), len(feed.kept), feed.served)
            for name, feed in ((name, self._fed[name]) for name in begin)
        )
        operator = ProgramOperator(self._stage_name(number), self._graph, number, fed, before is not None)
        inputs = [*map(self._calls, begin), *([] if before is None else [before])]
        self._builder.claim("operator", operator.name)
        return self._builder.add(lambda id: OperatorNode(id, tuple(inputs), operator))

    def _calls(self, entry: str) -> NodeId:
        feed, edge = self._fed[entry], self._graph.edge_of(entry)
        declared = self._graph.dataflow.entries[entry]
        types = {name: spark_type(type) for name, type in declared.parameter_types.items()}
        key = self._key_of(edge, list(types))
        calls = CallsOf(entry, self._number(entry), types, self._returns(entry), feed.order, feed.kept, key)
        label = f"calls of {entry}"
        return self._builder.add(lambda id: TransformNode(id, label, (feed.stream._node,), calls, verb_kinds.kept))

    def _returns(self, entry: str) -> str | None:
        answer = self._graph.dataflow.entries[entry].answer
        return None if answer is NOTHING else spark_type(answer)

    def _key_of(self, edge: Edge, parameters: Sequence[str]) -> int | tuple[Any, str] | None:
        key = self._graph.keyed_by(edge)
        if key is None or edge.key is None:
            return None
        return parameters.index(edge.key) if edge.key in parameters else (ast.literal_eval(edge.key), key.type)

    def _stages(self) -> list[int]:
        """Those that calls of the entries that are fed come to."""
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
