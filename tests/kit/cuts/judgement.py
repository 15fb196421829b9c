"""Checks of snapshots, common to all algorithms."""

from __future__ import annotations

from tests.kit.cuts.processes import Execution, Message, Processed
from tests.kit.cuts.traces import cut_violations, disorder, inconsistencies


def epoch_violations(execution: Execution, epoch: int) -> list[str]:
    """Check that the epoch's snapshot is epoch-complete: specification 4 of the thesis (esnap).

    Every process has recorded (ESNAP1), the cut is an epoch cut (definition 3.4.2; ESNAP2 and ESNAP3), and only
    messages in loops are in transit, all of them logged.
    """
    missing = _missing(execution, epoch)
    if missing:
        return missing
    cut = execution.snapshots[epoch].cut
    return [*disorder(execution.trace), *cut_violations(execution.trace, epoch, cut), *_in_transit(execution, epoch)]


def validity_violations(execution: Execution, epoch: int) -> list[str]:
    """Check that the snapshot is consistent: specification 1 (csnap), for any position of the cut.

    Every process has recorded (CSNAP1); the cut is consistent (definition 3.2.3) and the logged messages are those
    that are in transit across it (CSNAP2).
    """
    missing = _missing(execution, epoch)
    if missing:
        return missing
    return inconsistencies(execution.trace, epoch, execution.snapshots[epoch].cut) + _in_transit(execution, epoch)


def losses(execution: Execution, epoch: int) -> list[str]:
    """Check the at-least-once guarantee (thesis, 4.5.4): no event that precedes the epoch event is missing.

    Invariants (2) and (3) of definition 3.4.2, for the epoch's own events. Events of later epochs can be in the cut
    and are repeated, so that neither (1) nor (4) holds.
    """
    missing = _missing(execution, epoch)
    if missing:
        return missing
    trace, cut = execution.trace, execution.snapshots[epoch].cut
    before = {event for event in trace.before(trace.marks(epoch)) if isinstance(event, Processed)}
    pending, epochs_own = list(before), set(before)
    while pending:
        for result in trace.productions.get(pending.pop(), ()):
            assert isinstance(result, Processed)
            if result not in epochs_own:
                epochs_own.add(result)
                pending.append(result)
    return [f"is lost: {event}" for event in sorted(epochs_own - cut, key=str)]


def _missing(execution: Execution, epoch: int) -> list[str]:
    recorded = execution.snapshots[epoch].states if epoch in execution.snapshots else {}
    return [f"{name} has not recorded epoch {epoch}" for name in execution.processes if name not in recorded]


def _in_transit(execution: Execution, epoch: int) -> list[str]:
    snapshot = execution.snapshots[epoch]
    crossing = {_message(result) for _, result in execution.trace.across(snapshot.cut)}
    logged = [message for messages in snapshot.in_transit.values() for message in messages]
    found = [f"is in transit across epoch {epoch} and was not logged: {message}" for message in crossing - set(logged)]
    found += [f"was logged in epoch {epoch} and is not in transit: {message}" for message in set(logged) - crossing]
    if len(set(logged)) < len(logged):
        found.append(f"was logged twice in epoch {epoch}")
    return sorted(found)


def _message(event: object) -> Message:
    assert isinstance(event, Processed)
    return event.message
