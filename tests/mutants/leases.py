"""Wrong leader leases, and wrong decisions about the liveness of drivers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.mutants.mutant import change, mutant

SIMULATION = "tests/simulation/test_control_planes.py"
RECONCILER = "tests/service/test_supervision_reconciler.py"


def _nodes_clock(_: Any) -> Any:
    from epochal.service.catalog import types

    return lambda session: types.now()


@mutant("leases: expiry is judged by the node's clock", SIMULATION)
def _lease_by_the_nodes_clock() -> None:
    from epochal.service.catalog import leases

    change(leases, "database_now", _nodes_clock)


@mutant("leases: no safety margin, and the term counts from the answer", SIMULATION)
def _no_margin() -> None:
    from epochal.service.runtime.leadership import LeaseLeadership

    def late(hold: Any) -> Any:
        def wrong(self: Any, grant: Any, asked_at: float, since: datetime | None) -> None:
            hold(self, grant, self._clock() + self._settings.margin_seconds, since)

        return wrong

    change(LeaseLeadership, "_hold", late)


@mutant("leases: a lost lease is renewed", SIMULATION)
def _lost_lease_renewed() -> None:
    from epochal.service.catalog import leases

    change(leases, "may_renew", lambda _: lambda lease, term, moment, claimant: lease is not None)


@mutant("leases: a lease is taken before it has expired", SIMULATION)
def _taken_early() -> None:
    from epochal.service.catalog import leases

    change(leases, "may_take", lambda _: lambda lease, moment, claimant, is_gone: True)


@mutant("supervision: heartbeat timeouts are judged by the node's clock", SIMULATION)
def _timeout_by_the_nodes_clock() -> None:
    from epochal.service.catalog import ledger

    change(ledger, "database_now", _nodes_clock)


@mutant("supervision: heartbeats are written with the node's clock", SIMULATION)
def _heartbeats_by_the_nodes_clock() -> None:
    from sqlalchemy import bindparam

    from epochal.service.catalog import epoch_statements, types

    own = bindparam("own_clock", callable_=lambda: types.now(), type_=types.UtcDateTime())
    change(epoch_statements, "HEARTBEAT", lambda heartbeat: heartbeat.values(heartbeat_at=own))


@mutant("supervision: processes of other machines are looked up and killed on this one", SIMULATION)
def _without_machine() -> None:
    from epochal.service.runtime.supervision.reconciler import Reconciler

    change(Reconciler, "_is_here", lambda _: lambda self, reference: True)


@mutant("supervision: a new leader counts the time before its term towards heartbeat timeouts", SIMULATION)
def _no_time_for_drivers() -> None:
    from epochal.service.runtime.supervision import reconciler

    def hasty(decide: Any) -> Any:
        return lambda execution, process, now, since, settings: decide(
            execution, process, now, datetime.min.replace(tzinfo=now.tzinfo), settings
        )

    change(reconciler, "decide", hasty)


@mutant("supervision: a process is killed without an identity check", "tests/service/test_supervision_launcher.py")
def _kill_without_identity() -> None:
    from epochal.service.runtime.launchers.processes import LocalProcess

    change(LocalProcess, "exists", lambda _: lambda self: LocalProcess.find(self.pid) is not None)


@mutant("supervision: an attempt is given up although its heartbeat arrived meanwhile", RECONCILER)
def _given_up_despite_a_heartbeat() -> None:
    from epochal.service.catalog.ledger import ExecutionLedger

    def blind(_: Any) -> Any:
        def wrong(self: Any, execution: str, attempt: int, heard_at: Any, failure: Any) -> None:
            self.attempt_ended(execution, attempt, "lost", failure)

        return wrong

    change(ExecutionLedger, "attempt_lost", blind)


@mutant("supervision: every process that looks like a driver is killed", RECONCILER)
def _foreign_processes_are_killed() -> None:
    from epochal.service.catalog.ledger import ExecutionLedger
    from epochal.service.domain.executions import AttemptOver

    change(
        ExecutionLedger,
        "over",
        lambda over: lambda self, drivers: {name: AttemptOver("lost", 0.0) for name in drivers} | over(self, drivers),
    )


@mutant("drivers: addresses that a list omits are forgotten immediately", "tests/service/test_driver_http_catalog.py")
def _forgotten_immediately() -> None:
    from epochal.wire import http

    change(http, "EARLIER_SECONDS", lambda _: 0.0)
