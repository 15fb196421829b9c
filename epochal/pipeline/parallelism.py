"""The number of subtasks of single operators: checks of declared and of configured numbers.

An operator has the number that the configuration has for its name, else the one that the pipeline declares
(``parallelism=`` of the verb), else the number of the application.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epochal.contracts.configuration import Configuration
from epochal.declarations.names import alternatives
from epochal.errors import OptionError, PipelineError


@dataclass(frozen=True)
class Scaled:
    """An operator. ``scaled_as``: the name under which its number of subtasks is configured. ``declared``: its number
    in the pipeline, if any."""

    operator: str
    scaled_as: str
    declared: int | None = None

    def subtasks(self, configuration: Configuration) -> int:
        return configuration.parallelism_of(self.scaled_as, self.declared)


def declared_parallelism(operator: str, value: object) -> int | None:
    """``value`` if it is a number of subtasks, or ``None``. Raises ``PipelineError`` with operator and fix."""
    if value is None:
        return None
    if type(value) is not int:
        raise PipelineError(
            f"Operator {operator!r}: parallelism is {value!s}: give the number of subtasks, such as parallelism=16. "
            "A column of this name must be renamed."
        )
    if value < 1:
        raise PipelineError(f"Operator {operator!r}: parallelism is {value}: an operator has at least one subtask.")
    return value


def check_parallelism(operators: Iterable[Scaled], configuration: Configuration) -> None:
    """Raises ``OptionError`` for a configured number of an unknown operator, ``PipelineError`` for a declared number
    above ``max_parallelism``."""
    every, scaling = tuple(operators), configuration.autoscaling
    # Autoscaling has set numbers that their author does not know, also of operators that a later version removes.
    if scaling is None or not scaling.per_operator:
        check_operators(every, configuration.parallelisms)
    most = configuration.max_parallelism
    for each in every:
        if each.subtasks(configuration) > most:
            raise PipelineError(
                f"Operator {each.operator!r}: parallelism {each.declared} is above max_parallelism {most}: a subtask "
                "needs at least one key group. Declare a lower number."
            )


def check_operators(operators: Iterable[Scaled], configured: Iterable[str]) -> None:
    """Raises ``OptionError`` if one of the ``configured`` names is not that of an operator, with the fix."""
    every = tuple(operators)
    names = {each.scaled_as for each in every}
    for name in configured:
        part = next((each for each in every if each.operator == name), None)
        if name not in names and part is not None:
            raise OptionError(
                f"configuration.parallelisms: operator {name!r} has the number of subtasks of {part.scaled_as!r}. Set "
                f"parallelisms.{part.scaled_as} instead."
            )
        if name not in names:
            raise OptionError(
                f"configuration.parallelisms: the pipeline has no operator {name!r}.{alternatives(name, names)} Set "
                "it to null to remove it."
            )
