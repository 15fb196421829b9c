"""`Pipeline`, the entry point of authors. It builds a graph; nothing runs until an engine gets the graph."""

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
from epochal.pipeline.drawing import drawing_of
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

    Building a pipeline requires neither Spark nor access to the sources, tables and sinks.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name("a pipeline", name)
        self._builder = Builder()
        self._programs: list[Program] = []

    def read(self, name: str, source: SourceDefinition) -> Stream:
        """Read a source as a stream. The name must be unique among sources and tables; snapshots contain it."""
        check_name("a source", name)
        if not isinstance(source, SourceDefinition):
            raise PipelineError(
                f"Source {name!r} is {source!r}: use a source of epochal.connectors, such as files.source(path, "
                "format=..)."
            )
        self._builder.claim("source", name)
        description = {"kind": source.kind, **source.description}
        node = self._builder.add(lambda id: SourceNode(id, name, source.make, description, source.note))
        return Stream(self._builder, node)

    def table(self, name: str, table: TableDefinition) -> StaticTable:
        """Read a static table, for joins. Each attempt reads it once, and again after its ``refresh`` interval."""
        check_name("a table", name)
        if not isinstance(table, TableDefinition):
            raise PipelineError(
                f"Table {name!r} is {table!r}: use a table of epochal.connectors, such as files.table(path, format=..)."
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
        """Create a loop: a stream of the rows that are written to :meth:`Loop.close`, each in a later epoch::

            ranks = pipeline.feedback("ranks", "page bigint, share double", aligned=True)
            shares = links.union(ranks.select(..)).key_by("page").process(Rank)
            ranks.close(shares)

        While the loop contains records, epochs open immediately. Snapshots contain the records of the loop.
        ``max_hops``: the maximum number of hops of a record; after that, the record goes to :meth:`Loop.dead_letters`.
        Rows then have a column ``_hop``, which must be in the rows of ``close``. ``aligned``: the loop runs in rounds.
        Each epoch processes all of its records, and sources are not read while there are any. The hop is the number of
        the round, ``ctx.hop``. After the last round there is one more epoch, in which ``ctx.converged`` is true.
        """
        declared = feedback(name, schema, max_hops, aligned)
        self._builder.claim("source", name)
        return loop(self._builder, declared)

    def program(self, program: type[Any], name: str | None = None, *, parallelism: int | None = None) -> Program:
        """Add a class with ``@program`` (:mod:`epochal.programs`) to this pipeline::

            store = pipeline.program(KeyValueStore)
            store.feed("put", changes, order_by="at")
            store.feed("get", questions, order_by="at", keep="key")
            store.results("get").write("answers", files.sink("answers"))

        State tables have the names of the state elements, with the prefix ``name-`` if a name is given.
        ``parallelism``: the number of subtasks of each of its operators; by default that of the application. Raises
        ``ProgramRefused`` with the line that cannot be translated to a dataflow.
        """
        added = Program(self._builder, program, name, parallelism)
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
        """Declare an entry: calls of the application over HTTP, by the Python client and on the command line::

            calls = pipeline.entry("get", {"key": "string"}, returns="string", description="The value of a key.")

        Returns the stream of its calls, with the columns ``request_id``, ``sequence`` and the ``arguments``, whose
        types are Spark's names. ``sequence`` ascends in the order of the calls of all entries. A call can omit
        ``optional`` arguments, which are then null; other arguments are never null. ``returns``: the type of the values
        that :meth:`answer` supplies; without it a call is answered with null when its epoch is committed.
        """
        return entry_verbs.declare(self._builder, declared_entry(name, arguments, optional, returns, description))

    def answer(self, entry: str, stream: Stream, *, ttl: str = DAY) -> None:
        """Answer the calls of ``entry`` with the rows of ``stream``: ``request_id``, ``value`` (a string of JSON) and
        ``error`` (a string, or null)::

            found = calls.join(values, on="key", how="left")
            pipeline.answer("get", found.select("request_id", "to_json(value) AS value", "string(null) AS error"))

        Only the first answer of a call counts. Answers are in the state table ``{entry}_answers`` and are kept for
        ``ttl``, in processing time.
        """
        entry_verbs.answer(self._builder, entry, stream, ttl)

    def graph(self) -> Graph:
        """The graph. Raises ``PipelineError`` if there is nothing to run, or if a source is not used."""
        for program in self._programs:
            program.complete()
        builder = self._builder.copy()
        graph = Graph(name=self.name, nodes=entry_verbs.completed(builder), lines=tuple(builder.lines))
        if not graph.sources:
            raise PipelineError(f"Pipeline {self.name!r} has no source. Add one: pipeline.read(name, source).")
        if not graph.operators and not graph.sinks:
            raise PipelineError(f"Pipeline {self.name!r} has neither state nor a sink. Add a sink: write(name, sink).")
        unused = [node.name for node in graph.sources if node.id not in graph.needed]
        if unused:
            raise PipelineError(f"Source {listed(map(repr, unused))} is not used. Use it, or remove it.")
        entry_verbs.check_entries(graph)
        check_loops(graph)
        return graph

    def _repr_html_(self) -> str:
        """The graph as a picture for notebooks. An incomplete pipeline is drawn as it is."""
        return drawing_of(Graph(name=self.name, nodes=tuple(self._builder.nodes)))

    def show(self, rows: int = 20, *, sample: int = 1000, spark: SparkSession | None = None) -> None:
        """Print the output and state of one epoch over the first ``sample`` rows of each source, ``rows`` of each.

        Sinks are not written, and state is not kept. ``spark``: the default is the session of this process, or a new
        local session. Raises the errors of the pipeline, the sources and the epoch.
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
        """Run in this process, like ``epochal run``, until the sources end, ``epochs`` have run, or it is interrupted::

            pipeline.run(available_now=True, directory="state")

        ``available_now``: process the rows that the sources have now. When all sources are bounded and have ended, a
        last epoch outputs all rows that wait for event time, and the run cannot be continued; without ``drain`` the run
        ends before this epoch. ``directory``: the directory of the state, from which the next run continues
        (``take_over`` takes it over from another run). ``configuration``: settings of an application, such as
        ``{"parallelism": 4}``.
        ``shadow``: write to no sink. ``accept_changed`` and ``accept_partial``: operators and columns (``totals``,
        ``totals.lo``) whose meaning may differ from the state in ``directory``, and added aggregates that may cover
        later rows only, for this run. ``spark``: as in :meth:`show`. Raises the errors of the pipeline and the epochs,
        ``IncompatibleState`` if it cannot continue from the state, ``Conflict`` if another run uses the directory.
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
    """A pipeline that consists of a program whose entries are called from outside. Raises ``ProgramRefused``."""
    pipeline = Pipeline(name_of_class(program.__name__))
    pipeline.program(program).serve()
    return pipeline


def _local_runner() -> Runner:
    runner: Runner = find(RUNNERS, "local")()
    return runner
