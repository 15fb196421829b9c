"""The errors of the operating system and of stores, as Epochal's own: the only place where they are translated.

A store that does not answer, or refuses requests, is *unavailable*: work waits and continues (``StoreUnavailable``).
Any other error belongs to the file that is read or written.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from epochal.errors import EpochalError, FileMissing, SnapshotError, StorageFull, StoreRefuses, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_AWAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ESTALE, errno.EHOSTDOWN)
"""Errors of a network file system whose server does not answer."""


@contextmanager
def storage_errors(location: str) -> Iterator[None]:
    """Translate the errors of the block, in which ``location``, a file of this machine, is written."""
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"{location} is missing.") from None
    except OSError as error:
        raise _of_write(error, location) from error


@contextmanager
def store_errors(url: str, location: str, doing: str = "written") -> Iterator[None]:
    """Translate the errors of the block, in which ``location``, of the remote store ``url``, is ``doing``: written,
    deleted, read or listed. ``FileNotFoundError`` and ``FileExistsError`` pass."""
    what = "" if location == url else f"; {location} cannot be {doing}"
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except PermissionError as error:
        raise StoreRefuses(f"The store {url} refuses requests{what}: {_reason(error)}.") from error
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError) or error.errno in _AWAY:
            raise StoreUnavailable(f"The store {url} is not available{what}: {_reason(error)}.") from error
        if doing == "written":
            raise _of_write(error, location) from error
        raise SnapshotError(f"{location} cannot be {doing}: {_reason(error)}.") from error


def _of_write(error: OSError, location: str) -> EpochalError:
    if error.errno in _FULL:
        return StorageFull(
            f"There is no space left for {location}. No data is lost: free some space; the epoch is retried."
        )
    if error.errno in _CLOSED:
        return SnapshotError(
            f"{location} cannot be written: {error.strerror}. Drivers and the control plane require write access: "
            "check credentials, permissions, and that the volume is not read-only."
        )
    return SnapshotError(f"{location} cannot be written: {error}.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).rstrip(".")
