"""`Pipeline`: where an author starts. It collects a graph; nothing runs until an engine is given it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.contracts.registry import RUNNERS, find
from epochal.declarations.entry import DAY
from epochal.declarations.entry import entry as declared_entry
from epochal.declarations.feedback import feedback
from epochal.declarations.intervals import written_interval
from epochal.declarations.names import check_name, listed, name_of_class
from epochal.errors import PipelineError
from epochal.pipeline import entry_verbs
from epochal.pipeline.definitions import SourceDefinition, TableDefinition
from epochal.pipeline.graph import Builder, Graph, SourceNode, StaticNode
from epochal.pipeline.loops import Loop, check_loops, loop
from epochal.pipeline.programs import Program
from epochal.pipeline.relation import StaticTable
from epochal.pipeline.runner import Runner, RunOptions, RunOutcome
from epochal.pipeline.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class Pipeline:
    """A streaming program: sources, transforms, stateful operators, sinks::

        pipeline = Pipeline("delays")
        flights = pipeline.read("flights", files.source("data", format="json", schema="origin string, delay int"))
        delays = flights.where("delay IS NOT NULL").key_by("origin").aggregate("delays", flights="count(*)")
        delays.write("out", files.sink("out"))

    Building it needs neither Spark nor any of the places that it names.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name("a pipeline", name)
        self._builder = Builder()
        self._programs: list[Program] = []

    def read(self, name: str, source: SourceDefinition) -> Stream:
        """A stream of the source's rows. The name is unique among sources and tables, and part of every snapshot."""
        check_name("a source", name)
        if not isinstance(source, SourceDefinition):
            raise PipelineError(
                f"Source {name!r} is {source!r}: give one of epochal.connectors, such as files.source(path, format=..)."
            )
        self._builder.claim("source", name)
        description = {"kind": source.kind, **source.description}
        node = self._builder.add(lambda id: SourceNode(id=id, name=name, make=source.make, description=description))
        return Stream(self._builder, node)

    def table(self, name: str, table: TableDefinition) -> StaticTable:
        """A table that does not stream, to join with. Each attempt reads it, and again when its ``refresh`` is due."""
        check_name("a table", name)
        if not isinstance(table, TableDefinition):
            raise PipelineError(
                f"Table {name!r} is {table!r}: give one of epochal.connectors, such as files.table(path, format=..)."
            )
        self._builder.claim("source", name)
        refresh = table.refresh
        due = {} if refresh is None else {"refresh": written_interval(refresh)}
        description = {"kind": table.kind, **table.description, **due}
        node = self._builder.add(lambda id: StaticNode(id, name, table.read, description, refresh))
        return StaticTable(self._builder, node)

    def feedback(
        self, name: str, schema: str | StructType, *, max_hops: int | None = None, aligned: bool = False
    ) -> Loop:
        """A loop: a stream of the rows that :meth:`Loop.close` takes, each in an epoch after the one it was given in::

            ranks = pipeline.feedback("ranks", "page bigint, share double", aligned=True)
            shares = links.union(ranks.select(..)).key_by("page").process(Rank)
            ranks.close(shares)

        Epochs open at once while it holds records; what it holds is part of every snapshot. ``max_hops``: a record that
        has gone round so often goes to :meth:`Loop.dead_letters` instead of once more. Rows then have a column
        ``_hop``, which has to reach ``close``. ``aligned``: it goes in rounds. An epoch takes all of its records, and
        nothing comes from outside while there are any; the hop is that of the round, ``ctx.hop``. After the last round
        comes one more epoch, in which ``ctx.converged`` is true.
        """
        declared = feedback(name, schema, max_hops, aligned)
        self._builder.claim("source", name)
        return loop(self._builder, declared)

    def program(self, program: type[Any], name: str | None = None) -> Program:
        """A class with ``@program`` (:mod:`epochal.programs`) as operators of this pipeline::

            store = pipeline.program(KeyValueStore)
            store.feed("put", changes, order_by="at")
            store.feed("get", questions, order_by="at", keep="key")
            store.results("get").write("answers", files.sink("answers"))

        State tables: the names of its state elements, after ``name-`` where a name is said. Raises ``ProgramRefused``
        with the line of what cannot be a dataflow.
        """
        added = Program(self._builder, program, name)
        self._programs.append(added)
        return added

    def entry(
        self,
        name: str,
        arguments: Mapping[str, str],
        *,
        returns: str | None = None,
        optional: Collection[str] = (),
        description: str = "",
    ) -> Stream:
        """A way to call the application, over HTTP, by the Python client and on the command line::

            calls = pipeline.entry("get", {"key": "string"}, returns="string", description="The value of a key.")

        A stream of its calls: ``request_id``, ``sequence``, and the ``arguments`` by name, with Spark's names of their
        types. ``sequence`` rises in the order in which calls of all entries come. Arguments are never null, but for
        those that are ``optional``: a call may leave these out. ``returns``: the type of the answers' values, which
        :meth:`answer` gives; without it a call is answered with null by the epoch that took it.
        """
        return entry_verbs.declare(self._builder, declared_entry(name, arguments, optional, returns, description))

    def answer(self, entry: str, stream: Stream, *, ttl: str = DAY) -> None:
        """Answer the calls of ``entry`` with the rows of ``stream``: ``request_id``, ``value`` (a string of JSON) and
        ``error`` (a string; null where there is none)::

            found = calls.join(values, on="key", how="left")
            pipeline.answer("get", found.select("request_id", "to_json(value) AS value", "string(null) AS error"))

        The first answer of a call counts. Answers are the state table ``{entry}_answers``; they are kept for ``ttl``,
        in processing time.
        """
        entry_verbs.answer(self._builder, entry, stream, ttl)

    def graph(self) -> Graph:
        """What was built. Raises ``PipelineError`` when there is nothing to run, or a source that nothing reads."""
        for program in self._programs:
            program.complete()
        graph = Graph(name=self.name, nodes=entry_verbs.completed(self._builder.copy()))
        if not graph.sources:
            raise PipelineError(f"Pipeline {self.name!r} has no source: begin with pipeline.read(name, source).")
        if not graph.operators and not graph.sinks:
            raise PipelineError(f"Pipeline {self.name!r} neither keeps state nor writes: end with write(name, sink).")
        unused = [node.name for node in graph.sources if node.id not in graph.needed]
        if unused:
            raise PipelineError(f"Nothing reads source {listed(map(repr, unused))}: use it, or remove it.")
        entry_verbs.check_entries(graph)
        check_loops(graph)
        return graph

    def show(self, rows: int = 20, *, sample: int = 1000, spark: SparkSession | None = None) -> None:
        """Print what one epoch over the first ``sample`` rows of each source would write and keep, ``rows`` of each.

        Nothing is written to any sink, and nothing is kept. ``spark`` ``None``: the session of this process, or a local
        one that is started. Raises what the pipeline, a source or the epoch is wrong with.
        """
        _local_runner().show(self.graph(), rows, sample, spark)

    def run(
        self,
        *,
        epochs: int | None = None,
        available_now: bool = False,
        drain: bool = True,
        directory: str | Path | None = None,
        take_over: bool = False,
        configuration: Mapping[str, Any] | None = None,
        shadow: bool = False,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        spark: SparkSession | None = None,
    ) -> RunOutcome:
        """Run here, as ``epochal run`` does, until the sources end, after ``epochs``, or until it is interrupted::

            pipeline.run(available_now=True, directory="state")

        ``available_now`` takes what the sources have now. When all sources are bounded and at their end, a last epoch
        brings out everything that waits for event time, and nothing can follow; without ``drain`` the run ends before
        it. ``directory`` keeps the state, and the next run goes on from
        it (``take_over`` takes it from a run that holds it). ``configuration`` is an application's:
        ``{"parallelism": 4}``. ``shadow`` writes to no sink. ``accept_changed`` and ``accept_partial`` name operators
        and columns (``totals``, ``totals.lo``) that may mean something else than in the state in ``directory``, and
        added aggregates that may count later rows only; they hold for this run. ``spark`` as for :meth:`show`. Raises
        what the pipeline or an epoch is wrong with, ``IncompatibleState`` when it cannot go on from the state,
        ``Conflict`` when another run holds the directory.
        """
        options = RunOptions(
            epochs=epochs,
            available_now=available_now,
            drain=drain,
            directory=None if directory is None else Path(directory),
            take_over=take_over,
            configuration=dict(configuration or {}),
            shadow=shadow,
            accept_changed=accept_changed,
            accept_partial=accept_partial,
        )
        return _local_runner().run(self.graph(), options, spark)


def served(program: type[Any]) -> Pipeline:
    """The pipeline of a program alone: its entries are called from outside. Raises ``ProgramRefused``."""
    pipeline = Pipeline(name_of_class(program.__name__))
    pipeline.program(program).serve()
    return pipeline


def _local_runner() -> Runner:
    runner: Runner = find(RUNNERS, "local")()
    return runner
