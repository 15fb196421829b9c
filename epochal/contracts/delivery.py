"""How a sink's rows are delivered, and what an application promises of all its sinks."""

from __future__ import annotations

from typing import Final, Literal

Delivery = Literal["exactly_once", "at_least_once", "idempotent"]
"""What becomes of a sink's rows when a task or an epoch is run again (thesis 4.5.4, 4.5.6).

``exactly_once``: an epoch is visible once, and only when it is decided. ``at_least_once``: tasks write to the target as
they run, so that rows are visible before the decision and may be there again; none is missing. ``idempotent``: as that,
where a row takes the place of the one that it repeats.
"""
Guarantee = Literal["exactly_once", "at_least_once"]
"""What an application promises of all its sinks that do not say otherwise."""

DELIVERY: Final = "delivery"
"""In a handle's payload how the task has delivered its rows, where that is less than exactly once."""
