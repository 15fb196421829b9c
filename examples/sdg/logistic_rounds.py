"""Logistic regression that iterates within its application: gradient descent until the weights converge.

Each example stays on one instance. A round is a call of ``descend``: each instance computes the gradient over its own
examples, the sum gives the step, and a loop passes the new weights to the next call.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, Field

from epochal import Pipeline
from epochal.connectors import files
from epochal.programs import Collection, Global, Matrix, Partial, Vector, entry, program

LABEL = -1
"""The column of the label, which is 1 or -1, because elements of zero are not stored."""
STANDS_STILL = 1e-6
MAX_ROUNDS = 1000
VECTOR = "struct<indices: array<bigint>, values: array<double>>"


@program
class LogisticRounds:
    """``examples``: one row per example."""

    examples: Partial[Matrix[float]]

    @entry
    def learn(self, example: int, features: Vector[float], label: int) -> None:
        """Store an example, each number once. ``label`` is 0 or 1; features are numbered from 0."""
        if label not in (0, 1):
            raise ValueError(f"example {example} has label {label} instead of 0 or 1")
        if features.get(LABEL) != 0:
            raise ValueError(f"example {example} has a feature {LABEL}, where its label would be")
        self.examples.set_row(example, features + Vector({LABEL: 2.0 * label - 1.0}))

    @entry
    def descend(self, weights: Vector[float], rate: float, penalty: float) -> Vector[float]:
        """Return ``weights`` after a step of ``rate`` down the gradient of the summed loss of all examples, with a
        penalty of ``penalty`` / 2 times the square of the weights."""
        known: tuple[tuple[tuple[int, int], float], ...] = tuple(Global(self.examples).items())
        gradient: Vector[float] = self.gradient(known, weights)
        return weights - (self.total(Collection(gradient)) + weights * penalty) * rate

    def gradient(self, known: tuple[tuple[tuple[int, int], float], ...], weights: Vector[float]) -> Vector[float]:
        """Return the gradient of the loss over the examples of one instance."""
        labels = {example: value for (example, column), value in known if column == LABEL}
        margins: dict[int, float] = {}
        for (example, column), value in known:
            if column != LABEL:
                margins[example] = margins.get(example, 0.0) + value * weights.get(column)
        errors = {
            example: -label * self.sigmoid(-label * margins.get(example, 0.0)) for example, label in labels.items()
        }
        sums: dict[int, float] = {}
        for (example, column), value in known:
            if column != LABEL:
                sums[column] = sums.get(column, 0.0) + value * errors[example]
        return Vector(sums)

    def sigmoid(self, margin: float) -> float:
        """Compute the sigmoid function without overflow."""
        if margin >= 0:
            return 1 / (1 + math.exp(-margin))
        return math.exp(margin) / (1 + math.exp(margin))

    def total(self, parts: list[Vector[float]]) -> Vector[float]:
        """Sum the gradients over all instances."""
        total: Vector[float] = Vector()
        for each in parts:
            total = total + each
        return total


class Parameters(BaseModel):
    input: str = Field(description="a folder with folders examples and asked of calls; asked starts a descent")
    output: str = Field(description="a folder for the final weights")


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("logistic-rounds")
    examples, asked = (
        pipeline.read(name, files.source(f"{parameters.input}/{name}/*.json", format="json", schema=columns))
        for name, columns in {
            "examples": f"at timestamp, example bigint, features {VECTOR}, label bigint",
            "asked": "at timestamp, rate double, penalty double",
        }.items()
    )
    rounds = pipeline.feedback(
        "rounds", f"at timestamp, rate double, penalty double, round bigint, weights {VECTOR}", aligned=True
    )
    nothing = "named_struct('indices', CAST(array() AS array<bigint>), 'values', CAST(array() AS array<double>))"
    program = pipeline.program(LogisticRounds)
    program.feed("learn", examples, order_by="at")
    program.feed(
        "descend",
        asked.with_columns(round="CAST(1 AS BIGINT)", weights=nothing).union(rounds),
        order_by="at",
        keep=("at", "rate", "penalty", "round", "weights"),
    )
    moves = (
        "value.indices <> weights.indices OR "
        f"exists(zip_with(value.values, weights.values, (now, before) -> abs(now - before)), by -> by > {STANDS_STILL})"
    )
    stepped = program.results("descend").with_columns(moves=f"coalesce(round < {MAX_ROUNDS} AND ({moves}), false)")
    rounds.close(stepped.where("moves").select("at", "rate", "penalty", "round + 1 AS round", "value AS weights"))
    ended = stepped.where("NOT moves").select("at", "round", "value AS weights", "error")
    ended.write("weights", files.sink(parameters.output, format="json"))
    return pipeline
