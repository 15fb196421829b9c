"""What became of commands on standing queries: a change of the epoch that carried them out, in its manifest and in the
catalog, so that whoever is asked later tells the same, also when the driver ended before it could answer.
"""

from __future__ import annotations

from typing import Final

from epochal.contracts.catalog import Change, Failure

CHANGE: Final = "queries"
"""The kind of the change."""
CARRIED_OUT: Final = "carried_out"
"""The numbers of the commands, refused ones as well."""
REFUSED: Final = "refused"
"""Why some were, by number."""


def outcomes_of(change: Change) -> dict[int, Failure | None]:
    """By number of the command; ``None``: it was done."""
    refused = change.detail.get(REFUSED, {})
    return {
        number: Failure.model_validate(refused[str(number)]) if str(number) in refused else None
        for number in change.detail.get(CARRIED_OUT, ())
    }
