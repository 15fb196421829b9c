"""What all classes that authors write have in common, and what is checked of each before it can be an operator."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from epochal.declarations.state import declared_states
from epochal.declarations.time_to_live import check_clock_of_ttl
from epochal.errors import PipelineError
from epochal.state.table import StateScope


class Ordered:
    """A class that says in which order its rows come."""

    order_by: ClassVar[str | tuple[str, ...]] = ()

    @classmethod
    def order_columns(cls) -> tuple[str, ...]:
        """``order_by`` as a tuple."""
        return (cls.order_by,) if isinstance(cls.order_by, str) else tuple(cls.order_by)


def check_class(author: Any, base: type, verb: str, *methods: str) -> None:
    """Is it a subclass of ``base`` that defines ``methods``, such as ``process(self, rows, ctx)``?

    ``verb``: what takes the class, for messages. Raises ``PipelineError`` with the fix.
    """
    if not (isinstance(author, type) and issubclass(author, base)):
        shown = f"an instance of {type(author).__name__}" if isinstance(author, base) else repr(author)
        raise PipelineError(f"{verb} takes a subclass of {base.__name__}, not {shown}. Give the class itself.")
    for method in methods:
        name = method.partition("(")[0]
        if getattr(author, name) is getattr(base, name):
            raise PipelineError(f"{author.__name__} does not define {method}: define it.")


def check_order_by(author: Any) -> None:
    """Does ``order_by`` name columns? Raises ``PipelineError``."""
    order = author.order_by
    names: tuple[Any, ...] = order if isinstance(order, tuple) else (order,)
    if not all(isinstance(name, str) for name in names):
        raise PipelineError(f"{author.__name__}.order_by is {order!r}: give a column's name, or a tuple of names.")


def check_states(author: type, scopes: Collection[StateScope], fix: str) -> None:
    """Are all declared states valid, and of one of these scopes? Raises ``SchemaError`` and ``PipelineError``."""
    for state in declared_states(author).values():
        if state.scope not in scopes:
            raise PipelineError(f"state {state.name!r} of {author.__name__} is {state.scope.value} state; {fix}")
        state.value_columns()
        state.sub_key_columns()
        state.reconciling()


def check_times_to_live(author: type, event_time: str | None) -> None:
    """Is there an event time where a state expires by it? Raises ``PipelineError``."""
    for state in declared_states(author).values():
        check_clock_of_ttl(f"state {state.name!r} of {author.__name__}", state.expires, event_time)


def check_output(author: type) -> None:
    """Does the class say what it yields? Raises ``PipelineError``."""
    output = getattr(author, "output", None)
    if output is None or (isinstance(output, str) and not output.strip()):
        raise PipelineError(f"{author.__name__} does not say what it yields: add output = 'column type, ..' to it.")
