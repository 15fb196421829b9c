"""What one upgrade accepts by name: changed meanings of state, and columns that start beside full totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict, Field


class Acceptance(BaseModel):
    """Consent to the changes of one upgrade. It is not inherited by later versions, and is recorded in the lineage.

    Each name is ``OPERATOR`` (every column of it, its keys and its inputs) or ``OPERATOR.COLUMN``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    changed: tuple[str, ...] = Field(
        (),
        description="Operators (totals) and columns (totals.lo) whose argument, filter, key expression or input may "
        "differ from the version that computed the state.",
    )
    partial: tuple[str, ...] = Field(
        (),
        description="Operators and columns of aggregates that are added to existing keys and count rows only from this "
        "upgrade on.",
    )

    def __bool__(self) -> bool:
        return bool(self.changed or self.partial)

    def accepts_changed(self, operator: str, column: str | None = None) -> bool:
        """``column`` None: the keys or the inputs of the operator as a whole."""
        return _covered(self.changed, operator, column)

    def accepts_partial(self, operator: str, column: str) -> bool:
        return _covered(self.partial, operator, column)

    def unused(self, names: Sequence[str]) -> Iterator[str]:
        """The accepted names that are not in ``names``, each ``OPERATOR`` or ``OPERATOR.COLUMN`` of a difference."""
        known = {*names, *(name.partition(".")[0] for name in names)}
        return (name for name in (*self.changed, *self.partial) if name not in known)


NOTHING_ACCEPTED = Acceptance()


def _covered(names: Sequence[str], operator: str, column: str | None) -> bool:
    return operator in names or (column is not None and f"{operator}.{column}" in names)
