"""An administrator's orders on open transactions, carried out wherever the driver is: between epochs, or waiting.

An order is answered once its effect is there: at once for ``retry``, when the sink has moved on for ``commit`` and
``abort``. Until then it is delivered again, also to the next attempt, for which giving up twice is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from epochal.contracts.catalog import Catalog, Change, Directive, DriverStatus, Failure, TransactionOrder
from epochal.engine.commits import CommitQueue
from epochal.errors import Conflict


@dataclass
class TransactionOrders:
    """``changes`` is what the next epoch's manifest says of its reconfigurations: there an order is kept for good."""

    catalog: Catalog
    queue: CommitQueue
    changes: list[Change]
    _under_way: dict[str, TransactionOrder] = field(default_factory=dict, init=False)

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        """Report, and carry out the orders on transactions that come back; the other directives are the answer."""
        status = status.model_copy(update={"transactions": self.queue.transactions()})
        directives = self.catalog.heartbeat(status)
        for directive in directives:
            if directive.kind == "transaction" and directive.id not in self._under_way:
                self._take(directive)
        self._answer_what_is_done()
        return [directive for directive in directives if directive.kind != "transaction"]

    def _take(self, directive: Directive) -> None:
        order = TransactionOrder.model_validate(directive.arguments, extra="ignore")
        if not self.queue.is_open(order.sink, order.epoch):
            self._complete(directive.id, _too_late(order))
        elif order.action == "retry":
            self.queue.hurry()
            self._complete(directive.id)
        else:
            self._under_way[directive.id] = order
            self.queue.give_up(order.sink, order.epoch)

    def _answer_what_is_done(self) -> None:
        for directive, order in list(self._under_way.items()):
            if self.queue.is_open(order.sink, order.epoch):
                continue
            del self._under_way[directive]
            if self.queue.was_given_up(order.sink, order.epoch):
                self.changes.append(Change(kind="transaction", detail=order.model_dump(exclude_none=True)))
                self._complete(directive)
            else:
                self._complete(directive, _too_late(order))

    def _complete(self, directive: str, failure: Failure | None = None) -> None:
        self.catalog.complete(directive, None, failure)


def _too_late(order: TransactionOrder) -> Failure:
    message = f"Epoch {order.epoch} is not open in sink {order.sink!r} any more; nothing was done."
    return Failure(type=Conflict.slug, message=message)
