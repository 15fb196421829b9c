"""Wrong ways to restore a backup."""

from __future__ import annotations

from tests.mutants.mutant import mutant


@mutant("restore: attempt numbers are not raised", "tests/service/test_restores.py")
def _without_a_raised_attempt() -> None:
    from epochal.service.catalog import post_restore

    post_restore.LEAP = 0
