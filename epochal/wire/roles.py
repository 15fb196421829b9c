"""What somebody may do in a project."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Each role includes those before it. An ``author`` submits code, which is code execution."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AUTHOR = "author"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)
