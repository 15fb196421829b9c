"""What a token may do."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Scopes: read < operate < admin. ``operate`` includes submitting code, which is code execution."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)
