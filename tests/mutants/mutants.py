"""All mutants."""

from __future__ import annotations

from tests.mutants import (
    authoring,
    bundles,
    clock,
    compaction,
    engine,
    epoch_parts,
    event_time,
    events,
    kafka,
    leases,
    look_ups,
    meanings,
    object_stores,
    packs,
    restore,
    runs,
    security,
    sinks,
    sources,
    spares,
    state,
    tables,
    tasks,
    time_to_live,
    validation,
)
from tests.mutants.mutant import MUTANTS as MUTANTS
from tests.mutants.mutant import Mutant as Mutant

SUBJECTS = (
    clock,
    compaction,
    engine,
    epoch_parts,
    tasks,
    sinks,
    tables,
    sources,
    state,
    runs,
    event_time,
    time_to_live,
    kafka,
    leases,
    restore,
    bundles,
    object_stores,
    packs,
    events,
    spares,
    look_ups,
    meanings,
    validation,
    authoring,
    security,
)
"""Modules that declare their mutants when imported."""
