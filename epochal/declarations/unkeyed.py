"""What authors subclass for functions without a key: called once per subtask and epoch, with its own state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.declarations.author_classes import Ordered, check_class, check_order_by, check_output, check_states
from epochal.declarations.keyed import Context
from epochal.declarations.sides import check_sides
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
_FIX = (
    "process_any() has no key: declare ListState(.., scope='operator') or scope='union', or key the stream, "
    "key_by(..).process(..)."
)


def check_unkeyed(process: Any) -> None:
    """Can this class be an operator without a key? Raises ``PipelineError`` with the fix."""
    check_class(process, UnkeyedProcess, "process_any()", "process(self, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _FIX)
