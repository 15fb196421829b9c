"""Operations that fail for lack of space on one node are carried out by another node."""

from __future__ import annotations

import errno

import pytest

from epochal.errors import EnvironmentProblem, StorageFull
from epochal.service.catalog.database import Database
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.operation_claims import Claim
from epochal.service.domain.nodes import Node
from epochal.service.runtime.operations import OperationWorker, Verb
from tests.kit.catalogs import database as database
from tests.kit.catalogs import url as url
from tests.service.operation_workers import Checked, Request, operation, queued_operation


def node_of(database: Database, name: str) -> Node:
    node = Node(name, "control", name, "boot", 1, f"http://{name}:8765", None, "1")
    with database.writing() as session:
        NodeRepository(session).record_heartbeat(node)
    return node


@pytest.mark.parametrize("second_has_room", [True, False])
def test_operation_without_space_moves_to_another_node(database: Database, second_has_room: bool) -> None:
    """Each node tries once; the last one lists the nodes that have tried."""
    full = "There is no space left in {}/artifact-cache."

    def worker(name: str, has_room: bool) -> OperationWorker:
        def run(claim: Claim, request: Request) -> Checked:
            if has_room:
                return Checked(checked=name)
            raise EnvironmentProblem(full.format(name)) from OSError(errno.EDQUOT, "full", "/somewhere")

        worker = OperationWorker(database, node=node_of(database, name))
        worker.register("store", [Verb("verify", Request, run)])
        return worker

    first, second = worker("first", False), worker("second", second_has_room)
    id = queued_operation(database)
    for _ in range(2):
        first.work_off("store")  # this node does not claim it a second time
        waiting = operation(database, id)
        assert (waiting.state, waiting.claim_holder) == ("running", None)
        assert waiting.progress == f"waiting for another control plane: {full.format('first')}"
    second.work_off("store")
    ended = operation(database, id)
    if second_has_room:
        assert (ended.state, ended.result) == ("succeeded", {"checked": "second"})
        return
    assert ended.error is not None
    assert ended.error["detail"] == (
        f"{full.format('second')} The verify was tried at first (http://first:8765), second (http://second:8765). "
        "Make room there, then ask for it again."
    )


def test_operation_that_waits_for_a_removed_node_fails(database: Database) -> None:
    def run(claim: Claim, request: Request) -> Checked:
        raise StorageFull("There is no space left.")

    first, second = node_of(database, "first"), node_of(database, "second")
    worker = OperationWorker(database, node=first)
    worker.register("store", [Verb("verify", Request, run)])
    id = queued_operation(database)
    worker.work_off("store")
    assert operation(database, id).state == "running"
    with database.writing() as session:
        NodeRepository(session).remove(second.id)
    worker.work_off("store")
    assert operation(database, id).state == "failed"
