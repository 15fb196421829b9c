"""Random process graphs, inputs and schedules, for the algorithms of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st

from tests.kit.cuts.processes import (
    Channel,
    EpochEvent,
    Execution,
    Input,
    MakeProcess,
    Message,
    ProcessGraph,
    Snapshot,
)


@dataclass(frozen=True)
class Scene:
    """Everything that an execution depends on, except the algorithm.

    ``counts``: for each source, the number of messages before each epoch event and after the last one.
    """

    graph: ProcessGraph
    counts: Mapping[str, Sequence[int]]
    schedule: tuple[int, ...]

    @property
    def epochs(self) -> range:
        return range(1, len(next(iter(self.counts.values()))))

    def run(self, make: MakeProcess, graph: ProcessGraph | None = None, **options: Any) -> Execution:
        """``graph``: replaces the scene's graph, for example by the expanded one."""
        graph = graph or self.graph
        return Execution(graph, make, self.inputs(graph), **options).run(self.schedule)

    def resumed(self, make: MakeProcess, graph: ProcessGraph, epoch: int, snapshot: Snapshot) -> Execution:
        """Resumes from a snapshot, without further epoch events; the trace is the rest of the computation."""
        inputs = {
            name: [each for each in inputs if isinstance(each, Message) or each.epoch <= epoch]
            for name, inputs in self.inputs(graph).items()
        }
        return Execution(graph, make, inputs, resumed=(epoch, snapshot)).run(self.schedule)

    def inputs(self, graph: ProcessGraph) -> dict[str, list[Input]]:
        found: dict[str, list[Input]] = {}
        for name in graph.sources:
            found[name] = []
            counts = self.counts.get(name, [0] * (len(self.epochs) + 1))  # heads of loops receive only epoch events
            for epoch, count in enumerate(counts, 1):
                first = sum(isinstance(each, Message) for each in found[name])
                found[name] += [Message((f"{name}.{number}",)) for number in range(first + 1, first + count + 1)]
                if epoch < len(counts):
                    found[name].append(EpochEvent(epoch))
        return found


@st.composite
def graphs(draw: st.DrawFn, loops: bool = False) -> ProcessGraph:
    """Sources, and tasks that read from previous nodes; ``loops`` adds one or two channels back."""
    sources = [f"s{number}" for number in range(1, draw(st.integers(1, 3)) + 1)]
    tasks = [f"t{number}" for number in range(1, draw(st.integers(1, 4)) + 1)]
    channels: list[Channel] = []
    for position, task in enumerate(tasks):
        before = [*sources, *tasks[:position]]
        read = set(draw(st.lists(st.sampled_from(before), min_size=1, unique=True)))
        if position == len(tasks) - 1:  # the last task reads all sources that are still unread
            read |= set(sources) - {channel.sender for channel in channels}
        channels += [Channel(name, task) for name in before if name in read]
    graph = ProcessGraph(tuple(channels))
    if loops:
        closing = [
            Channel(last, first, closes_loop=True)
            for first in tasks
            for last in tasks
            if last in graph.reaches(first) | {first}
        ]
        channels += draw(st.lists(st.sampled_from(closing), min_size=1, max_size=2, unique=True))
    return ProcessGraph(tuple(channels))


@st.composite
def scenes(draw: st.DrawFn, graph: st.SearchStrategy[ProcessGraph], epochs: int = 2, max_messages: int = 2) -> Scene:
    drawn = draw(graph)
    count = st.lists(st.integers(0, max_messages), min_size=epochs + 1, max_size=epochs + 1)
    counts = {name: tuple(draw(count)) for name in drawn.sources}
    return Scene(drawn, counts, tuple(draw(st.lists(st.integers(0, 11), max_size=60))))
