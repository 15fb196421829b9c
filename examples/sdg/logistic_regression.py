"""Logistic regression by batch gradient descent (section 6.2 of the SDG paper): partial gradients, merged each round.

In each round, ``observe`` adds the examples, in any order and on any instance; ``gradient`` returns the sum over all
instances; ``step`` sets the weights of all instances and begins the next round.
"""

from __future__ import annotations

import math

from epochal.programs import Collection, Global, Partial, Vector, entry, program


@program
class LogisticRegression:
    """All instances of ``weights`` are equal; each of ``gradients`` has the sum over its examples."""

    weights: Partial[Vector[float]]
    gradients: Partial[Vector[float]]

    @entry
    def observe(self, features: Vector[float], label: float) -> None:
        """Add an example's gradient. ``label`` is 0 or 1."""
        error: float = self.sigmoid(self.weights.dot(features)) - label
        self.gradients.add_vector(features * error)

    @entry
    def gradient(self) -> Vector[float]:
        """Return the gradient of the loss over the examples of this round."""
        partial: Vector[float] = Global(self.gradients).value()
        return self.merge(Collection(partial))

    @entry
    def step(self, weights: Vector[float]) -> None:
        """Continue with these weights."""
        Global(self.weights).assign(weights)
        Global(self.gradients).clear()

    @entry
    def probability(self, features: Vector[float]) -> float:
        """Return the probability that the label is 1."""
        return self.sigmoid(self.weights.dot(features))

    def sigmoid(self, margin: float) -> float:
        """Compute the sigmoid function without overflow."""
        if margin >= 0:
            return 1 / (1 + math.exp(-margin))
        return math.exp(margin) / (1 + math.exp(margin))

    def merge(self, partial: list[Vector[float]]) -> Vector[float]:
        """Sum the gradients over all instances."""
        merged: Vector[float] = Vector()
        for each in partial:
            merged = merged + each
        return merged
