"""Connected components of a graph that grows: each vertex knows the least vertex that it is connected with.

Edges come as a stream, each once, from whichever end. A new edge joins components within as many epochs as it is hops
to the vertex that is farthest away. In which order messages arrive does not matter, so the loop need not go in rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from epochal import KeyedProcess, ListState, Pipeline, To, ValueState
from epochal.connectors import files


class Parameters(BaseModel):
    input: str = Field(description="a folder of edges: JSON, one and other")
    output: str = Field(description="a folder for the labels as they change")


class Components(KeyedProcess):
    """``label``: of a message, a vertex that the key is connected with; ``neighbour``: of an edge, its other end."""

    neighbours = ListState("neighbour bigint")
    component = ValueState("label bigint")
    output = "vertex bigint, neighbour bigint, label bigint"
    sides: ClassVar = {"labels": "vertex bigint, label bigint"}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        known = self.component.get()
        label = min([key.vertex if known is None else known, *(row.label for row in rows if row.label is not None)])
        new = sorted({row.neighbour for row in rows if row.neighbour is not None})
        told = list(self.neighbours) if label != known else []
        self.neighbours.extend(new)
        if label != known:
            self.component.set(label)
            yield To("labels", (key.vertex, label))
        for neighbour in sorted({*told, *new}):
            yield neighbour, None, label


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("components")
    edges = pipeline.read(
        "edges", files.source(f"{parameters.input}/*.json", format="json", schema="one bigint, other bigint")
    )
    messages = pipeline.feedback("messages", "vertex bigint, neighbour bigint, label bigint")
    nothing = "CAST(NULL AS BIGINT) AS label"
    ends = edges.select("one AS vertex", "other AS neighbour", nothing).union(
        edges.select("other AS vertex", "one AS neighbour", nothing)
    )
    labels = ends.union(messages).key_by("vertex").process(Components)
    messages.close(labels)
    labels.side("labels").write("labels", files.sink(parameters.output, format="json"))
    return pipeline
