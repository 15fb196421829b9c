"""Wrong ways to lead, and to judge whether a driver lives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.mutants.mutant import change, mutant

SIMULATION = "tests/simulation/test_control_planes.py"
ROUNDS = "tests/service/test_supervision_rounds.py"


def _nodes_clock(_: Any) -> Any:
    from epochal.service.catalog import types

    return lambda session: types.now()


@mutant("leases: expiry is judged by the node's clock", SIMULATION)
def _lease_by_the_nodes_clock() -> None:
    from epochal.service.catalog import leases

    change(leases, "database_now", _nodes_clock)


@mutant("leases: no margin, and counted from the answer", SIMULATION)
def _no_margin() -> None:
    from epochal.service.runtime.leadership import LeaseLeadership

    def late(hold: Any) -> Any:
        def wrong(self: Any, grant: Any, asked_at: float, since: datetime | None) -> None:
            hold(self, grant, self._clock() + self._settings.margin_seconds, since)

        return wrong

    change(LeaseLeadership, "_hold", late)


@mutant("leases: one that was lost is renewed", SIMULATION)
def _renewed_after_it_was_lost() -> None:
    from epochal.service.catalog import leases

    change(leases, "may_renew", lambda _: lambda lease, term, moment, claimant: lease is not None)


@mutant("leases: one is taken before it is over", SIMULATION)
def _taken_early() -> None:
    from epochal.service.catalog import leases

    change(leases, "may_take", lambda _: lambda lease, moment, claimant, is_gone: True)


@mutant("supervision: silence is judged by the node's clock", SIMULATION)
def _silence_by_the_nodes_clock() -> None:
    from epochal.service.catalog import ledger

    change(ledger, "database_now", _nodes_clock)


@mutant("supervision: heartbeats are written by the node's clock", SIMULATION)
def _heartbeats_by_the_nodes_clock() -> None:
    from sqlalchemy import bindparam

    from epochal.service.catalog import epoch_statements, types

    own = bindparam("own_clock", callable_=lambda: types.now(), type_=types.UtcDateTime())
    change(epoch_statements, "HEARTBEAT", lambda heartbeat: heartbeat.values(heartbeat_at=own))


@mutant("supervision: processes of other machines are looked for and ended here", SIMULATION)
def _without_machine() -> None:
    from epochal.service.runtime.supervision.rounds import Rounds

    change(Rounds, "_is_here", lambda _: lambda self, reference: True)


@mutant("supervision: who begins to lead takes silence before for death", SIMULATION)
def _no_time_for_drivers() -> None:
    from epochal.service.runtime.supervision import rounds

    def hasty(decide: Any) -> Any:
        return lambda execution, process, now, since, settings: decide(
            execution, process, now, datetime.min.replace(tzinfo=now.tzinfo), settings
        )

    change(rounds, "decide", hasty)


@mutant("supervision: a process is killed without its identity", "tests/service/test_supervision_launcher.py")
def _kill_without_identity() -> None:
    from epochal.service.runtime.launchers.processes import LocalProcess

    change(LocalProcess, "exists", lambda _: lambda self: LocalProcess.find(self.pid) is not None)


@mutant("supervision: what was heard in the meantime is given up", ROUNDS)
def _given_up_all_the_same() -> None:
    from epochal.service.catalog.ledger import ExecutionLedger

    def blind(_: Any) -> Any:
        def wrong(self: Any, execution: str, attempt: int, heard_at: Any, failure: Any) -> None:
            self.attempt_ended(execution, attempt, "lost", failure)

        return wrong

    change(ExecutionLedger, "attempt_lost", blind)


@mutant("supervision: every process that looks like a driver's is ended", ROUNDS)
def _strangers_are_ended() -> None:
    from epochal.service.catalog.ledger import ExecutionLedger
    from epochal.service.domain.executions import AttemptOver

    change(
        ExecutionLedger,
        "over",
        lambda over: lambda self, drivers: {name: AttemptOver("lost", 0.0) for name in drivers} | over(self, drivers),
    )
