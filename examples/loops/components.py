"""Connected components of a growing graph: each vertex stores the smallest vertex of its component.

Edges arrive as a stream, each once, in either direction. After a new edge, labels reach all vertices within as many
epochs as the farthest one is hops away. The order of messages does not matter, so the loop need not be aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from epochal import KeyedProcess, ListState, Pipeline, To, ValueState
from epochal.connectors import files


class Parameters(BaseModel):
    input: str = Field(description="a folder of edges: JSON, one and other")
    output: str = Field(description="a folder for changed labels")


class Components(KeyedProcess):
    """Input rows have ``label``, a vertex of the same component, or ``neighbour``, the other end of an edge."""

    neighbours = ListState("neighbour bigint")
    component = ValueState("label bigint")
    output = "vertex bigint, neighbour bigint, label bigint"
    sides: ClassVar = {"labels": "vertex bigint, label bigint"}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        known = self.component.get()
        label = min([key.vertex if known is None else known, *(row.label for row in rows if row.label is not None)])
        new = sorted({row.neighbour for row in rows if row.neighbour is not None})
        existing = list(self.neighbours) if label != known else []
        self.neighbours.extend(new)
        if label != known:
            self.component.set(label)
            yield To("labels", (key.vertex, label))
        for neighbour in sorted({*existing, *new}):
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
