"""Deliberately wrong protocols, of all subjects."""

from __future__ import annotations

from tests.mutants import (
    authoring,
    engine,
    event_time,
    events,
    kafka,
    leases,
    look_ups,
    restore,
    runs,
    sinks,
    spares,
    state,
    tasks,
    time_to_live,
)
from tests.mutants.mutant import MUTANTS as MUTANTS
from tests.mutants.mutant import Mutant as Mutant

SUBJECTS = (
    engine,
    tasks,
    sinks,
    state,
    runs,
    event_time,
    time_to_live,
    kafka,
    leases,
    restore,
    events,
    spares,
    look_ups,
    authoring,
)
"""Whose mutants are declared by being imported."""
