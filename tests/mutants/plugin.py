"""A pytest plugin that applies the mutant named by ``EPOCHAL_MUTANT``."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

from tests.mutants.mutants import MUTANTS

# A failure is enough: shrinking the example would take minutes.
settings.register_profile("mutants", max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))
for _mutant in MUTANTS:
    if _mutant.name == os.environ["EPOCHAL_MUTANT"]:
        _mutant.apply()
from tests.simulation import test_control_planes, test_simulation  # noqa: E402 - they import what has just been changed

# Some mutants show in one history of fifty only.
test_control_planes.SAMPLE = 200
test_simulation.SAMPLE = 100
