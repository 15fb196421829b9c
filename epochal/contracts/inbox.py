"""Inbox of an application: durable, numbered calls of its entries, waiting for the driver."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from epochal.errors import SourceError


class AcceptedCall(NamedTuple):
    """A call in the inbox. ``new``: it was accepted just now, and is not a repeated call."""

    number: int
    entry: str
    new: bool


class CallBatch(BaseModel):
    """Calls of one entry that were accepted together. Call i has the number ``first + i``; numbers rise from batch to
    batch, with gaps. ``arguments``: a JSON object per call, as text."""

    model_config = ConfigDict(frozen=True)

    entry: str
    first: int
    request_ids: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.request_ids) - 1

    def within(self, after: int, through: int) -> CallBatch:
        """The calls with numbers above ``after``, up to ``through``."""
        begin, end = max(0, after + 1 - self.first), max(0, through + 1 - self.first)
        return CallBatch(
            entry=self.entry,
            first=self.first + begin,
            request_ids=self.request_ids[begin:end],
            arguments=self.arguments[begin:end],
        )


class InboxPage(BaseModel):
    """A page of the inbox. ``last``: highest assigned number; ``taken``: number of the last call that epochs have
    taken, as the catalog records it. ``batches``: some of the requested calls, in order."""

    model_config = ConfigDict(frozen=True)

    last: int = 0
    taken: int = 0
    batches: tuple[CallBatch, ...] = ()


class Inbox(ABC):
    """Inbox of one application, as its driver sees it. All methods are thread-safe."""

    @abstractmethod
    def begin(self, after: int) -> None:
        """Start to fetch calls above ``after``."""

    @abstractmethod
    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        """Calls above ``after`` that have been fetched, at most ``most``. Contacts no server."""

    @abstractmethod
    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        """Exactly the calls above ``after`` up to ``through``. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def last(self) -> int:
        """Highest assigned number. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def taken(self) -> int:
        """Number of the last call that epochs of this lineage have taken, for a source without a position: some
        versions in between had no entries. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until calls arrive, at most ``seconds``."""


class GivenCalls(Inbox):
    """A fixed list of calls, which a trial runs again."""

    def __init__(self, batches: Sequence[CallBatch]) -> None:
        self._batches = tuple(batches)

    def begin(self, after: int) -> None:
        pass

    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        found, left = list[CallBatch](), most
        for batch in self._batches:
            if batch.last > after and left != 0:
                through = batch.last if left is None else max(batch.first, after + 1) + left - 1
                found.append(batch.within(after, through))
                left = None if left is None else left - len(found[-1].request_ids)
        return found

    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        return [each.within(after, through) for each in self._batches if each.last > after and each.first <= through]

    def last(self) -> int:
        return self._batches[-1].last if self._batches else 0

    def taken(self) -> int:
        return 0

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class NoInbox(Inbox):
    """Inbox without a control plane: it receives no calls."""

    def begin(self, after: int) -> None:
        pass

    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        return ()

    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        raise SourceError(
            f"The calls from {after + 1} to {through} are in the inbox of a control plane, which this run cannot "
            "reach. Run the application with that control plane."
        )

    def last(self) -> int:
        return 0

    def taken(self) -> int:
        return 0

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


NO_INBOX = NoInbox()
