"""Errors of commands: one sentence with a remedy, and an exit code."""

from __future__ import annotations

from enum import IntEnum

from epochal.errors import (
    AuthorError,
    CatalogFull,
    CatalogUnavailable,
    Conflict,
    EnvironmentProblem,
    EpochalError,
    Fenced,
    Forbidden,
    NotFound,
    PreconditionFailed,
    SnapshotExpired,
    Unauthenticated,
)


class ExitCode(IntEnum):
    """Exit codes of the command line; documented in ``epochal --help``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    NOT_ALLOWED = 6


_CODES: tuple[tuple[tuple[type[EpochalError], ...], ExitCode], ...] = (
    ((NotFound, SnapshotExpired), ExitCode.NOT_FOUND),
    ((Conflict, PreconditionFailed, Fenced), ExitCode.CONFLICT),
    ((CatalogFull,), ExitCode.FAILED),
    ((CatalogUnavailable,), ExitCode.UNREACHABLE),
    ((Unauthenticated, Forbidden), ExitCode.NOT_ALLOWED),
)


def exit_code(error: EpochalError) -> ExitCode:
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.FAILED


def sentence(error: BaseException) -> str:
    """First line of the message; of an author's error the whole text, with the position in the code."""
    text = error.message if isinstance(error, EpochalError) else f"{type(error).__name__}: {error}"
    return text.strip() if isinstance(error, AuthorError) else text.strip().partition("\n")[0]


def of_the_system(error: OSError) -> EnvironmentProblem | None:
    """Describe an error of the operating system that names a file; ``None`` if it names none."""
    if error.filename is None or error.strerror is None:
        return None
    return EnvironmentProblem(f"{error.filename}: {error.strerror}. Check the path and its permissions.")


def unexpected(error: BaseException) -> str:
    """Message for an unhandled exception."""
    return f"Unexpected error: {sentence(error)}. Run the command again with EPOCHAL_DEBUG=1 for a traceback."
