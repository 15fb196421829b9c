"""Wrong ways to give an application a spare driver."""

from __future__ import annotations

import os
from typing import Any

from tests.mutants.mutant import change, mutant

SPARES = "tests/service/test_spares.py tests/service/test_warm_pool.py tests/service/test_warm_pool_decisions.py"


@mutant("spares: a spare is used for any Spark settings and environment", SPARES)
def _any_spare_fits() -> None:
    from epochal.service.runtime.launchers.spare_process import SpareKey

    change(SpareKey, "__eq__", lambda _: lambda self, other: True)


@mutant("spares: a spare that does not answer is used", SPARES)
def _unresponsive() -> None:
    from epochal.service.runtime.launchers.spare_process import SpareProcess

    change(SpareProcess, "answers", lambda _: lambda self, seconds: True)


@mutant("spares: a used spare stays in the pool", SPARES)
def _used_twice() -> None:
    from epochal.service.runtime.warm_pool import WarmPool

    def wrong(take: Any) -> Any:
        def wrong_take(self: WarmPool[Any, Any], key: Any, claim: Any) -> Any:
            before = list(self._held)
            taken = take(self, key, claim)
            self._held = before
            return taken

        return wrong_take

    change(WarmPool, "take", wrong)


@mutant("spares: the maximum age of spares is ignored", SPARES)
def _old_spares() -> None:
    from epochal.service.runtime import warm_pool

    change(warm_pool, "why_over", lambda _: lambda times, age_seconds, is_ready: None)


@mutant("spares: a command line can name any file as the claim file", "tests/service/test_hostile_processes.py")
def _any_claim_file() -> None:
    from epochal.service.domain.executions import DriverName
    from epochal.service.runtime.launchers import local, spare_process

    def trusting(claim: Any, folder: Any) -> DriverName | None:
        try:
            # Does not wait for the writer of a FIFO, so that the tests end.
            with open(os.open(claim, os.O_RDONLY | os.O_NONBLOCK)) as file:
                execution, _, attempt = file.read(1 << 20).rpartition("-")
        except OSError:
            return None
        return DriverName(execution, int(attempt)) if execution and attempt.isdecimal() else None

    for module in (spare_process, local):
        change(module, "claimed_name", lambda _: trusting)


@mutant("spares: a used spare cannot be identified", SPARES)
def _no_claim() -> None:
    from epochal.service.runtime.launchers import spare_process

    change(spare_process, "claimed_name", lambda _: lambda claim, folder: None)
    from epochal.service.runtime.launchers import local

    change(local, "claimed_name", lambda _: lambda claim, folder: None)
