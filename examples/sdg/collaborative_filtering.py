"""Online recommendations: algorithm 1 of the SDG paper.

``user_item`` stores the ratings of each user, partitioned by user. ``co_occurrence`` counts how many users rated two
items. Any call can write any element of it, so it is partial: each instance counts a part of the calls.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from epochal import Pipeline, Stream
from epochal.connectors import files
from epochal.programs import Collection, Global, Matrix, Partial, Partitioned, Vector, entry, program


class Parameters(BaseModel):
    input: str = Field(description="a folder with a folder ratings and, with an output, a folder asked")
    output: str | None = Field(None, description="a folder for recommendations; without it callers request them")


@program
class CollaborativeFiltering:
    """Item-based collaborative filtering, online."""

    user_item: Partitioned[Matrix[int]]
    co_occurrence: Partial[Matrix[int]]

    @entry
    def add_rating(self, user: int, item: int, rating: int) -> None:
        """Add a rating. Rating an item again counts its co-occurrences again, as in the paper."""
        self.user_item.set_element(user, item, rating)
        row: Vector[int] = self.user_item.row(user)
        for other, count in row.items():
            if count > 0:
                self.co_occurrence.add(item, other, 1)
                self.co_occurrence.add(other, item, 1)

    @entry
    def recommend(self, user: int) -> Vector[int]:
        """Score each item by its co-occurrences with the items that the user has rated, weighted by the ratings."""
        row: Vector[int] = self.user_item.row(user)
        scores: Vector[int] = Global(self.co_occurrence).multiply(row)
        return self.merge(Collection(scores))

    def merge(self, scores: list[Vector[int]]) -> Vector[int]:
        """Sum the scores over all instances."""
        merged: Vector[int] = Vector()
        for each in scores:
            merged = merged + each
        return merged


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("collaborative-filtering")

    def read(name: str, columns: str) -> Stream:
        calls = files.source(f"{parameters.input}/{name}/*.json", format="json", schema=f"at timestamp, {columns}")
        return pipeline.read(name, calls)

    filtering = pipeline.program(CollaborativeFiltering)
    filtering.feed("add_rating", read("ratings", "user bigint, item bigint, rating bigint"), order_by="at")
    if parameters.output is None:
        filtering.serve("recommend")
    else:
        filtering.feed("recommend", read("asked", "user bigint"), order_by="at", keep=("user", "at"))
        filtering.results("recommend").write("recommendations", files.sink(parameters.output, format="json"))
    return pipeline
