"""Column expressions that are recorded first and evaluated by Spark later.

Spark's ``pyspark.sql.functions`` needs a running JVM to create a ``Column``. A pipeline is built without a JVM (the
control plane builds it to read its graph), so authors use the functions of :mod:`epochal.functions`. They have the same
names and arguments, are recorded as an :class:`Expression`, and are replayed on Spark when the job of an epoch is
planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.declarations.names import closest
from epochal.errors import PipelineError
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

_OPERATORS = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__mod__": "%",
    "__and__": "&",
    "__or__": "|",
    "__eq__": "==",
    "__ne__": "!=",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
}

_with_spark: ContextVar[bool] = ContextVar("epochal_with_spark", default=False)


@dataclass(frozen=True, eq=False)
class Call:
    """``function(*arguments, **named)``; with a ``target``, a method of it."""

    name: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    target: Expression | None = None


class Expression:
    """A recorded column expression, with the methods and operators of Spark's ``Column``."""

    __slots__ = ("call", "column")
    __hash__ = object.__hash__

    def __init__(self, call: Call) -> None:
        self.call = call
        self.column: Column | None = None
        """Created when first needed and cached for later epochs: creating it costs calls into the JVM."""

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **named: Expression(Call(name, arguments, named, self))

    def __reduce__(self) -> tuple[type[Expression], tuple[Call]]:
        return Expression, (self.call,)

    def __bool__(self) -> bool:
        raise PipelineError(
            f"{self} has no truth value until Spark evaluates it: use & for 'and', | for 'or', ~ for 'not'."
        )

    def __iter__(self) -> Iterator[Any]:
        raise PipelineError(f"{self} is a single column and cannot be iterated.")

    def __getitem__(self, key: Any) -> Expression:
        return self._method("__getitem__", key)

    def __call__(self, *arguments: Any) -> Expression:
        return self._method("__call__", *arguments)

    def __add__(self, other: Any) -> Expression:
        return self._method("__add__", other)

    def __radd__(self, other: Any) -> Expression:
        return self._method("__radd__", other)

    def __sub__(self, other: Any) -> Expression:
        return self._method("__sub__", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._method("__rsub__", other)

    def __mul__(self, other: Any) -> Expression:
        return self._method("__mul__", other)

    def __rmul__(self, other: Any) -> Expression:
        return self._method("__rmul__", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._method("__truediv__", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._method("__rtruediv__", other)

    def __mod__(self, other: Any) -> Expression:
        return self._method("__mod__", other)

    def __rmod__(self, other: Any) -> Expression:
        return self._method("__rmod__", other)

    def __pow__(self, other: Any) -> Expression:
        return self._method("__pow__", other)

    def __neg__(self) -> Expression:
        return self._method("__neg__")

    def __invert__(self) -> Expression:
        return self._method("__invert__")

    def __and__(self, other: Any) -> Expression:
        return self._method("__and__", other)

    def __rand__(self, other: Any) -> Expression:
        return self._method("__rand__", other)

    def __or__(self, other: Any) -> Expression:
        return self._method("__or__", other)

    def __ror__(self, other: Any) -> Expression:
        return self._method("__ror__", other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._method("__eq__", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._method("__ne__", other)

    def __lt__(self, other: Any) -> Expression:
        return self._method("__lt__", other)

    def __le__(self, other: Any) -> Expression:
        return self._method("__le__", other)

    def __gt__(self, other: Any) -> Expression:
        return self._method("__gt__", other)

    def __ge__(self, other: Any) -> Expression:
        return self._method("__ge__", other)

    def __str__(self) -> str:
        return _written(self.call)

    def __repr__(self) -> str:
        return f"<{self}>"

    def _method(self, name: str, *arguments: Any) -> Expression:
        return Expression(Call(name, arguments, {}, self))


def record(name: str, *arguments: Any, **named: Any) -> Any:
    """The function ``name`` of Spark: recorded, or called immediately inside :func:`with_spark`."""
    if _with_spark.get():
        by_name = {key: _to_spark(value) for key, value in named.items()}
        return _spark_function(name)(*map(_to_spark, arguments), **by_name)
    return Expression(Call(name, arguments, named))


def column(name: str) -> Expression:
    """The column with exactly this name."""
    return Expression(Call("col", (quoted(name),), {}))


def call(name: str, *arguments: Any) -> Expression:
    """A call of Spark's function ``name``."""
    return Expression(Call(name, arguments, {}))


def null(type: str) -> Expression:
    return call("lit", None).cast(type)


def sql(text: str) -> Expression:
    """A Spark SQL expression."""
    return Expression(Call("expr", (text,), {}))


def epoch_time() -> Expression:
    """The time of the epoch, a timestamp. It is equal for all rows, and when the epoch is computed again.

    In SQL text, write ``epoch_time()``.
    """
    expression: Expression = record("expr", "epoch_time()")
    return expression


@contextmanager
def with_spark() -> Iterator[None]:
    """Inside the block, :mod:`epochal.functions` are Spark's functions, for authors' code over DataFrames."""
    token = _with_spark.set(True)
    try:
        yield
    finally:
        _with_spark.reset(token)


def as_expression(what: str, value: object) -> Expression:
    """Convert SQL text to an expression. Raises ``PipelineError`` for other types, with the fix."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        if value.strip():
            return sql(value)
        raise PipelineError(f"{what} is empty: use SQL text such as 'delay + 1', or a function of epochal.functions.")
    if type(value).__module__.startswith("pyspark."):
        raise PipelineError(
            f"{what} is a column of pyspark.sql.functions, which requires a running Spark session, but a pipeline is "
            "built without one. Use `from epochal import functions as F`, which has the same functions."
        )
    raise PipelineError(f"{what} is {value!r}: use SQL text, or an expression of epochal.functions.")


def to_column(expression: Expression) -> Column:
    """Replay the expression on Spark, once. Requires a session. Raises ``PipelineError`` for an unknown function."""
    if expression.column is None:
        with with_spark():
            expression.column = _replay(expression.call)
    return expression.column


def rebuilt(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with replaced parts: ``change`` returns a replacement, or ``None`` to descend into the part."""
    replacement = change(expression)
    if replacement is not None:
        return replacement

    def inner(value: Any) -> Any:
        return rebuilt(value, change) if isinstance(value, Expression) else value

    call = expression.call
    target = None if call.target is None else rebuilt(call.target, change)
    arguments = tuple(map(inner, call.arguments))
    named = {name: inner(value) for name, value in call.named.items()}
    return Expression(Call(call.name, arguments, named, target))


def _replay(call: Call) -> Any:
    arguments = [_to_spark(argument) for argument in call.arguments]
    named = {name: _to_spark(argument) for name, argument in call.named.items()}
    if call.target is None:
        return _spark_function(call.name)(*arguments, **named)
    return getattr(_replay(call.target.call), call.name)(*arguments, **named)


def _to_spark(value: Any) -> Any:
    if isinstance(value, Expression):
        return _replay(value.call)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_spark, value))
    return value


def _spark_function(name: str) -> Callable[..., Any]:
    import pyspark.sql.functions as spark_functions

    function: Callable[..., Any] | None = getattr(spark_functions, name, None)
    if function is None:
        raise PipelineError(f"Spark has no function {name!r}.{closest(name, dir(spark_functions))}")
    return function


def _written(call: Call) -> str:
    if call.target is not None:
        if call.name in _OPERATORS:
            return f"({call.target} {_OPERATORS[call.name]} {_argument(call.arguments[0])})"
        if call.name.startswith("__r") and (symbol := _OPERATORS.get("__" + call.name[3:])):
            return f"({_argument(call.arguments[0])} {symbol} {call.target})"
    if call.target is None and call.name in ("col", "column", "expr", "lit") and len(call.arguments) == 1:
        return str(call.arguments[0]) if call.name != "lit" else repr(call.arguments[0])
    arguments = [_argument(argument) for argument in call.arguments]
    arguments += [f"{name}={_argument(argument)}" for name, argument in call.named.items()]
    return f"{'' if call.target is None else f'{call.target}.'}{call.name}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if callable(value) and not isinstance(value, Expression):
        return getattr(value, "__name__", "function")
    return str(value)
