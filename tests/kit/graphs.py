"""Connected components and rounds as loops, for tests: pipelines, rows and expected results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa

from epochal import KeyedProcess, ListState, Pipeline, To, ValueState
from epochal.connectors import console, generator
from epochal.pipeline.definitions import SinkDefinition
from tests.kit.lives import Row, struct

EDGES = pa.schema([("vertex", pa.int64()), ("neighbour", pa.int64()), ("label", pa.int64())])
COLUMNS = {"vertex": "id", "neighbour": "id + 1", "label": "CAST(NULL AS BIGINT)"}
MESSAGE = "vertex bigint, neighbour bigint, label bigint"

Edge = tuple[int, int]


class Components(KeyedProcess):
    """Stores a vertex's neighbours and the smallest vertex of its component, and sends the latter to the neighbours."""

    neighbours = ListState("neighbour bigint")
    component = ValueState("label bigint")
    output = struct(vertex="long", neighbour="long", label="long")
    sides: ClassVar = {"labels": struct(vertex="long", label="long")}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        known = self.component.get()
        label = min([known if known is not None else key.vertex, *(row.label for row in rows if row.label is not None)])
        new = sorted({row.neighbour for row in rows if row.neighbour is not None})
        existing = list(self.neighbours) if label != known else []
        for neighbour in new:
            self.neighbours.append(neighbour)
        if label != known:
            self.component.set(label)
            yield To("labels", (key.vertex, label))
        for neighbour in sorted({*existing, *new}):
            yield neighbour, None, label


def components(
    max_hops: int | None = None,
    aligned: bool = False,
    sink: Callable[[str], SinkDefinition] = lambda name: console.sink(),
) -> Pipeline:
    """Return a pipeline with the sink ``labels``, and with ``max_hops`` also the sink ``dead``."""
    found = Pipeline("components")
    edges = found.read("edges", generator.source(COLUMNS))
    messages = found.feedback("messages", MESSAGE, max_hops=max_hops, aligned=aligned)
    labels = edges.union(messages).key_by("vertex").process(Components, name="components")
    messages.close(labels)
    labels.side("labels").write("labels", sink("labels"))
    if max_hops is not None:
        messages.dead_letters().write("dead", sink("dead"))
    return found


def rows_of_edges(edges: Iterable[Edge]) -> list[Row]:
    """Return each edge as two rows, one from each end."""
    return [{"vertex": a, "neighbour": b} for one, other in edges for a, b in ((one, other), (other, one))]


def connected(edges: Iterable[Edge]) -> dict[int, int]:
    """Return the smallest vertex of the component of each vertex."""
    least: dict[int, int] = {}
    for edge in edges:
        for vertex in edge:
            least.setdefault(vertex, vertex)
    changed = True
    while changed:
        changed = False
        for one, other in edges:
            label = min(least[one], least[other])
            changed |= least[one] != label or least[other] != label
            least[one] = least[other] = label
    return least


class Rounds(KeyedProcess):
    """Outputs each row with ``n`` reduced by 1 until it is 0, and reports the round and the convergence."""

    seen = ValueState("rows bigint")
    output = struct(name="string", n="long")
    sides: ClassVar = {"said": struct(name="string", n="long", hop="long", converged="boolean")}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        self.seen.set((self.seen.get() or 0) + len(rows))
        for row in rows:
            yield To("said", (row.name, row.n, ctx.hop, ctx.converged))
            if row.n > 0:
                yield row.name, row.n - 1


class Later(Rounds):
    """Like :class:`Rounds`, but for a row whose ``n`` is 3 a timer outputs the next row in a later epoch."""

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        if any(row.n == 3 for row in rows):
            ctx.processing_timer(ctx.epoch_time + timedelta(seconds=1))
        yield from super().process(key, [row for row in rows if row.n != 3], ctx)

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Iterable[Any]:
        yield key.name, 2


COUNTED = pa.schema([("name", pa.string()), ("n", pa.int64())])


def rounds(
    max_hops: int | None = None, aligned: bool = True, name: str = "loop", process: type[KeyedProcess] = Rounds
) -> Pipeline:
    """Return a pipeline with the sink ``said``, and with ``max_hops`` also the sink ``dead``. ``name``: name of the
    loop."""
    found = Pipeline("rounds")
    rows = found.read("rows", generator.source({"name": "string(id)", "n": "id"}))
    loop = found.feedback(name, "name string, n bigint", max_hops=max_hops, aligned=aligned)
    given = rows.union(loop).key_by("name").process(process, name="rounds")
    loop.close(given)
    given.side("said").write("said", console.sink())
    if max_hops is not None:
        loop.dead_letters().write("dead", console.sink())
    return found
