"""Continuous k-means: points arrive as a stream, and after each batch the centres move until they converge.

Points are stored in shards. In each round every shard sends each centre the number and the sum of its nearest points.
Each centre moves to the mean of its points, and sends its new position to all shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from epochal import KeyedProcess, ListState, MapState, Pipeline, To, ValueState
from epochal.connectors import files

SHARDS = 4
STANDS_STILL = 1e-6


class Parameters(BaseModel):
    input: str = Field(description="a folder of points: JSON, id, x and y")
    output: str = Field(description="a folder for moved centres")


class Assign(KeyedProcess):
    """A shard: stores its points and the positions of centres. An input row is a point or a moved centre."""

    points = ListState("x double, y double")
    centres = MapState("centre int", "x double, y double")
    begin: ClassVar = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    """Initial positions of the centres."""
    output = "shard int, centre int, points bigint, x double, y double"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        self.points.extend(sorted((row.x, row.y) for row in rows if row.centre is None))
        for row in rows:
            if row.centre is not None:
                self.centres.put(row.centre, (row.x, row.y))
        points = np.array([tuple(point) for point in self.points], float).reshape(-1, 2)
        centres = np.array([tuple(self.centres.get(number) or place) for number, place in enumerate(self.begin)])
        nearest = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        for number in range(len(centres)):
            mine = points[nearest == number]
            yield key.shard, number, len(mine), float(mine[:, 0].sum()), float(mine[:, 1].sum())


class Move(KeyedProcess):
    """A centre: stores the latest sums of each shard, and its position."""

    said = MapState("shard int", "points bigint, x double, y double")
    place = ValueState("x double, y double")
    output = "shard int, centre int, x double, y double"
    sides: ClassVar = {"centres": "centre int, x double, y double, round int"}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        for row in rows:
            self.said.put(row.shard, (row.points, row.x, row.y))
        said = np.array([tuple(value) for _, value in sorted(self.said.items())])
        points, x, y = said.sum(axis=0)
        if not points:
            return
        now, before = (float(x / points), float(y / points)), self.place.get()
        if before is not None and np.hypot(now[0] - before.x, now[1] - before.y) < STANDS_STILL:
            return
        self.place.set(*now)
        yield To("centres", (key.centre, *now, ctx.hop))
        for shard in range(SHARDS):
            yield shard, key.centre, *now


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("k-means")
    points = pipeline.read(
        "points", files.source(f"{parameters.input}/*.json", format="json", schema="id bigint, x double, y double")
    )
    moved = pipeline.feedback("moved", "shard int, centre int, x double, y double", aligned=True)
    shards = points.select(f"CAST(id % {SHARDS} AS INT) AS shard", "CAST(NULL AS INT) AS centre", "x", "y").union(moved)
    centres = shards.key_by("shard").process(Assign).key_by("centre").process(Move)
    moved.close(centres)
    centres.side("centres").write("centres", files.sink(parameters.output, format="json"))
    return pipeline
