"""Results of commands on standing queries: a change of the epoch that executed them, in its manifest and in the
catalog.

So results remain available if the driver terminates before it has answered.
"""

from __future__ import annotations

from typing import Final

from epochal.contracts.catalog import Change, Failure

CHANGE: Final = "queries"
"""The kind of the change."""
CARRIED_OUT: Final = "carried_out"
"""The numbers of the commands, including refused ones."""
REFUSED: Final = "refused"
"""The failures of refused commands, by number."""


def outcomes_of(change: Change) -> dict[int, Failure | None]:
    """The result by number of the command; ``None`` if it succeeded."""
    refused = change.detail.get(REFUSED, {})
    return {
        number: Failure.model_validate(refused[str(number)]) if str(number) in refused else None
        for number in change.detail.get(CARRIED_OUT, ())
    }
