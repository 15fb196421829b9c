"""Where calls of an application's entries wait for its driver: numbered, durable, the same whenever they are read."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from epochal.errors import SourceError


class CallBatch(BaseModel):
    """Calls of one entry that were taken together. The i-th has the number ``first + i``; numbers rise from batch to
    batch, with gaps. ``arguments``: of each call, the JSON text of an object."""

    model_config = ConfigDict(frozen=True)

    entry: str
    first: int
    request_ids: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.request_ids) - 1

    def within(self, after: int, through: int) -> CallBatch:
        """Those with numbers above ``after``, up to ``through``."""
        begin, end = max(0, after + 1 - self.first), max(0, through + 1 - self.first)
        return CallBatch(
            entry=self.entry,
            first=self.first + begin,
            request_ids=self.request_ids[begin:end],
            arguments=self.arguments[begin:end],
        )


class InboxPage(BaseModel):
    """``last``: the highest number that was given out; ``taken``: that of the last call that epochs have taken, by what
    the catalog knows. ``batches``: some of those that were asked for, in order."""

    model_config = ConfigDict(frozen=True)

    last: int = 0
    taken: int = 0
    batches: tuple[CallBatch, ...] = ()


class Inbox(ABC):
    """The inbox of one application as its driver sees it. All methods may be called from any thread."""

    @abstractmethod
    def begin(self, after: int) -> None:
        """From now on calls above ``after`` are waited for."""

    @abstractmethod
    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        """Calls above ``after`` that are known to be there, at most so many. Asks nobody."""

    @abstractmethod
    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        """Exactly the calls above ``after`` up to ``through``. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def last(self) -> int:
        """The highest number that was given out. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def taken(self) -> int:
        """The number of the last call that epochs of this line have taken, for a source that does not know where it
        was: entries were gone for some versions. May block. Raises ``CatalogUnavailable``."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when calls have come, or when the time is over."""


class GivenCalls(Inbox):
    """Calls that are there from the beginning, and no others: those that a trial runs again."""

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
    """Where there is no control plane nobody calls."""

    def begin(self, after: int) -> None:
        pass

    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        return ()

    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        raise SourceError(
            f"The calls from {after + 1} to {through} are in the inbox of a control plane, which is not reached from "
            "here. Run the application there."
        )

    def last(self) -> int:
        return 0

    def taken(self) -> int:
        return 0

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


NO_INBOX = NoInbox()
