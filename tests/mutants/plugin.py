"""A pytest plugin that makes the change of the mutant named by ``EPOCHAL_MUTANT``."""

from __future__ import annotations

import os

from tests.mutants.mutants import MUTANTS

for _mutant in MUTANTS:
    if _mutant.name == os.environ["EPOCHAL_MUTANT"]:
        _mutant.apply()
