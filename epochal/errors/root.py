"""The root of all errors."""

from __future__ import annotations

from typing import ClassVar


class EpochalError(Exception):
    """Epochal could not complete the request."""

    slug: ClassVar[str] = "error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


def error_class(slug: str) -> type[EpochalError] | None:
    """The imported class that declares this slug; ``None`` if there is none.

    A class without its own slug is transferred as its parent.
    """
    pending: list[type[EpochalError]] = [EpochalError]
    while pending:
        kind = pending.pop()
        if vars(kind).get("slug") == slug:
            return kind
        pending += kind.__subclasses__()
    return None
