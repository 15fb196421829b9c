"""Registration of this process as a node in the catalog, and its heartbeat."""

from __future__ import annotations

import logging
import os

import epochal
from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.nodes import HEARTBEAT_SECONDS, Node, Role
from epochal.service.domain.settings import Settings
from epochal.service.runtime.machine import this_machine

log = logging.getLogger("epochal.nodes")


def this_node(settings: Settings, role: Role) -> Node:
    """The node of this process. Each start is a new node."""
    machine = this_machine()
    return Node(
        id=new_id(),
        role=role,
        host=machine.host,
        boot=machine.boot,
        process=os.getpid(),
        public_url=settings.public_url,
        internal_url=settings.internal_url if role == "control" else None,
        version=epochal.__version__,
    )


class NodeHeartbeat:
    """A component: registers the node, records a heartbeat every two seconds, and removes the node at an orderly
    stop."""

    def __init__(self, database: Database, node: Node, seconds: float = HEARTBEAT_SECONDS) -> None:
        self.node = node
        self._database = database
        self._service = BackgroundService("node", self._say, seconds, delay=seconds)
        self._opened = False

    def open(self) -> None:
        """Register the node. Raises ``CatalogUnavailable``."""
        self._say()
        self._service.start()
        self._opened = True

    def close(self) -> None:
        self._service.stop(timeout=10)
        if not self._opened:
            return
        try:
            with self._database.writing() as session:
                NodeRepository(session).remove(self.node.id)
        except EpochalError as error:
            log.warning("cannot remove this node, which is listed until its entry expires: %s", error)

    def _say(self) -> None:
        with self._database.writing() as session:
            NodeRepository(session).record_heartbeat(self.node)
