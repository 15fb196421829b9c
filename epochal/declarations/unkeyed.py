"""What authors subclass for functions without a key: called once per subtask and epoch, with its own state."""

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
    """A function called once per subtask and epoch, with the subtask's share of the rows. Subclass it::

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

    Rows are dealt to the subtasks in turn, the same rows to each whenever an epoch is computed again. The function must
    be deterministic in (state, rows). At another parallelism the subtasks get other rows, and what they give may
    differ. Its states are lists: ``scope="operator"``, or ``"union"``, which every subtask reads whole. Other class
    attributes are settings: ``process_any(Batches, size=500)`` replaces them.
    """

    output: ClassVar[str | StructType]
    """The columns of what ``process`` yields, as Spark spells schemas."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns that a subtask's rows are sorted by, ascending, nulls first; and then by all other columns."""
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name: rows come to it by ``yield To("alerts", row)``."""

    def process(self, rows: Iterable[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows: tuples in the order of ``output``, named tuples, or dicts by name.

        ``rows`` are named tuples of all columns of the input, read as they are asked for, once; there may be none.
        """
        raise NotImplementedError


SCOPES = (StateScope.OPERATOR, StateScope.UNION)
_UNKEYED_FIX = (
    "process_any() has no key: declare ListState(.., scope='operator') or scope='union', or key the stream, "
    "key_by(..).process(..)."
)


def check_unkeyed(process: Any) -> None:
    """Can this class be an operator without a key? Raises ``PipelineError`` with the fix."""
    check_class(process, UnkeyedProcess, "process_any()", "process(self, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _UNKEYED_FIX)


if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PartialProcess(Ordered):
    """A function whose state no key divides: each subtask writes an instance of its own. Subclass it::

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

    and ``baskets.process_partial(Similar, requests=asked)``. In each epoch every subtask calls ``process`` once, with
    its share of the rows (*local* access), and then ``process_global`` for each request, which all instances get
    (*global* access), in the same order. What they return for a request comes together in ``merge``, once all have
    answered it. Without ``answer``, what ``process_global`` yields is output as it is.

    The function must be deterministic in (state, rows). At another parallelism other rows come to an instance: only
    what is merged is the same then, if it does not depend on which instance holds what.
    """

    output: ClassVar[str | StructType]
    """The columns of what ``merge`` yields or, without ``answer``, of what the others do, as Spark spells schemas."""
    answer: ClassVar[str | StructType | None] = None
    """The columns of what ``process_global`` returns. Then ``process`` yields to sides alone."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns that a subtask's rows are sorted by, ascending, nulls first; and then by all other columns."""
    request_order: ClassVar[str | tuple[str, ...]] = ()
    """As ``order_by``, of the requests."""
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name: rows come to it by ``yield To("alerts", row)``."""

    def process(self, rows: Iterable[Any], ctx: Context) -> Iterable[Any] | None:
        """Take an instance's share of the rows. Yield (or return a list of) rows.

        ``rows`` are named tuples of all columns of the input, read as they are asked for, once; there may be none.
        """
        raise NotImplementedError

    def process_global(self, request: Any, ctx: Context) -> Any:
        """Take a request, a named tuple, in every instance: after the epoch's rows.

        With ``answer`` return this instance's, a tuple, a named tuple or a dict of its columns, or ``None`` for none.
        Without it yield rows as ``process`` does.
        """
        raise NotImplementedError

    def merge(self, request: Any, answers: Sequence[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows for a request that all instances have answered.

        ``answers``: theirs, in the order of the instances, as named tuples; those that have answered nothing are left
        out. There is no state here.
        """
        raise NotImplementedError

    @classmethod
    def request_columns(cls) -> tuple[str, ...]:
        """``request_order`` as a tuple."""
        return (cls.request_order,) if isinstance(cls.request_order, str) else tuple(cls.request_order)


_PARTIAL_FIX = "process_partial() has an instance of state per subtask: declare it with scope='partial'."


def check_partial(process: Any, with_requests: bool) -> None:
    """Can this class be an operator on partial state? Raises ``PipelineError`` with the fix.

    ``with_requests``: whether it is given a stream of them.
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
            f"{name} has process_global, and no requests: give the stream that they come by, requests=.."
        )
    merges = process.merge is not PartialProcess.merge
    if merges and process.answer is None:
        raise PipelineError(f"{name} has merge, but does not say what it merges: add answer = 'column type, ..' to it.")
    if process.answer is not None and not merges:
        raise PipelineError(f"{name} has answer, and does not define merge(self, request, answers, ctx): define it.")
