"""Base classes of functions without a key: one call per subtask and epoch, with operator, union or partial state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.declarations.author_classes import (
    Context,
    Ordered,
    check_class,
    check_order_by,
    check_output,
    check_states,
)
from epochal.declarations.sides import check_sides
from epochal.errors import PipelineError
from epochal.state.table import StateScope

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class UnkeyedProcess(Ordered):
    """A function that is called once per subtask and epoch, with the rows of the subtask. Subclass it::

        class Batches(UnkeyedProcess):
            waiting = ListState("id bigint, amount double", scope="operator")
            output = "ids array<bigint>, amount double"
            order_by = "time"
            size = 100

            def process(self, rows, ctx):
                held = self.waiting.get()
                for row in rows:
                    held.append((row.id, row.amount))
                    if len(held) == self.size:
                        yield [id for id, _ in held], sum(amount for _, amount in held)
                        held = []
                self.waiting.clear()
                self.waiting.extend(held)

    Rows are distributed to the subtasks round-robin, in the same way when an epoch is computed again. The function must
    be deterministic in (state, rows). With a different parallelism the subtasks get different rows, and the output can
    differ. States are lists with ``scope="operator"``, or with ``scope="union"``, which every subtask reads completely.
    Other class attributes are settings: ``process_any(Batches, size=500)`` replaces them.
    """

    output: ClassVar[str | StructType]
    """The columns of the output, in Spark's schema syntax."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns by which the rows of a subtask are sorted, ascending, nulls first; then by all other
    columns."""
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name. ``yield To("alerts", row)`` writes a row to it."""

    def process(self, rows: Iterable[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows: tuples in the order of ``output``, named tuples, or dicts by name.

        ``rows`` are named tuples of all columns of the input. They can be iterated once, lazily, and can be empty.
        """
        raise NotImplementedError


SCOPES = (StateScope.OPERATOR, StateScope.UNION)
_UNKEYED_FIX = (
    "process_any() has no key: declare ListState(.., scope='operator') or scope='union', or use key_by(..).process(..)."
)


def check_unkeyed(process: Any) -> None:
    """Check the class of ``process_any(..)``. Raises ``PipelineError`` with the fix."""
    check_class(process, UnkeyedProcess, "process_any()", "process(self, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _UNKEYED_FIX)


if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PartialProcess(Ordered):
    """A function with partial state: each subtask has its own instance of the state. Subclass it::

        class Similar(PartialProcess):
            together = MapState(key="item int, other int", value="times bigint", scope="partial", reconcile="sum")
            answer = "times map<int, bigint>"
            output = "user int, times map<int, bigint>"

            def process(self, rows, ctx):
                for row in rows:
                    pair = (row.item, row.other)
                    self.together.put(pair, self.together.get(pair, 0) + 1)

            def process_global(self, request, ctx):
                return [{other: n for (item, other), n in self.together.items() if item == request.item}]

            def merge(self, request, answers, ctx):
                total = Counter()
                for answer in answers:
                    total.update(dict(answer.times))
                yield request.user, dict(total)

    and call ``baskets.process_partial(Similar, requests=asked)``. In each epoch every subtask calls ``process`` once,
    with its rows (*local* access), and then ``process_global`` for each request (*global* access). All instances get
    all requests, in the same order. ``merge`` gets the answers of all instances to a request. Without ``answer``, the
    rows that ``process_global`` yields are the output.

    The function must be deterministic in (state, rows). With a different parallelism the instances get different rows.
    Only merged results are then the same, provided that they do not depend on the distribution over the instances.
    """

    output: ClassVar[str | StructType]
    """The columns of the rows of ``merge`` or, without ``answer``, of the other methods, in Spark's schema syntax."""
    answer: ClassVar[str | StructType | None] = None
    """The columns of the answers that ``process_global`` returns. ``process`` can then only yield to sides."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns by which the rows of a subtask are sorted, ascending, nulls first; then by all other
    columns."""
    request_order: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns by which the requests are sorted, like ``order_by``."""
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name. ``yield To("alerts", row)`` writes a row to it."""

    def process(self, rows: Iterable[Any], ctx: Context) -> Iterable[Any] | None:
        """Process the rows of this instance. Yield (or return a list of) rows.

        ``rows`` are named tuples of all columns of the input. They can be iterated once, lazily, and can be empty.
        """
        raise NotImplementedError

    def process_global(self, request: Any, ctx: Context) -> Any:
        """Process a request, a named tuple. Every instance gets it, after the rows of the epoch.

        With ``answer``, return the answer of this instance: a tuple, a named tuple or a dict of its columns, or
        ``None`` for no answer. Without it, yield rows as ``process`` does.
        """
        raise NotImplementedError

    def merge(self, request: Any, answers: Sequence[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows for a request that all instances have answered.

        ``answers``: named tuples in the order of the instances, without the instances that returned ``None``. State is
        not available here.
        """
        raise NotImplementedError

    @classmethod
    def request_columns(cls) -> tuple[str, ...]:
        """``request_order`` as a tuple."""
        return (cls.request_order,) if isinstance(cls.request_order, str) else tuple(cls.request_order)


_PARTIAL_FIX = "process_partial() has one instance of the state per subtask: declare it with scope='partial'."


def check_partial(process: Any, with_requests: bool) -> None:
    """Check the class of ``process_partial(..)``. Raises ``PipelineError`` with the fix.

    ``with_requests``: whether the verb has a stream of requests.
    """
    check_class(process, PartialProcess, "process_partial()", "process(self, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, (StateScope.PARTIAL,), _PARTIAL_FIX)
    _check_global(process, with_requests)


def _check_global(process: type[PartialProcess], with_requests: bool) -> None:
    name = process.__name__
    if with_requests:
        check_class(process, PartialProcess, "process_partial()", "process_global(self, request, ctx)")
    elif process.process_global is not PartialProcess.process_global:
        raise PipelineError(
            f"{name} defines process_global but has no requests. Pass the stream of requests, requests=.."
        )
    merges = process.merge is not PartialProcess.merge
    if merges and process.answer is None:
        raise PipelineError(
            f"{name} defines merge but does not declare the answers: add answer = 'column type, ..' to the class."
        )
    if process.answer is not None and not merges:
        raise PipelineError(
            f"{name} declares answer but does not define merge(self, request, answers, ctx). Define it."
        )
