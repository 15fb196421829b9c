"""Deliberately wrong protocols, of all subjects."""

from __future__ import annotations

from tests.mutants import engine, event_time, events, leases, restore, sinks, state, time_to_live
from tests.mutants.mutant import MUTANTS as MUTANTS
from tests.mutants.mutant import Mutant as Mutant

SUBJECTS = (engine, sinks, state, event_time, time_to_live, leases, restore, events)
"""Whose mutants are declared by being imported."""
