"""This process's row among the nodes, kept fresh."""

from __future__ import annotations

import logging
import os
import threading

import epochal
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.nodes import HEARTBEAT_SECONDS, Node, Role
from epochal.service.domain.settings import Settings
from epochal.service.runtime.machine import this_machine

log = logging.getLogger("epochal.nodes")


def this_node(settings: Settings, role: Role) -> Node:
    """A process that begins to be a node. Each start is another one."""
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
    """A component: registers the node, says every two seconds that it is there, and removes it at an orderly stop."""

    def __init__(self, database: Database, node: Node, seconds: float = HEARTBEAT_SECONDS) -> None:
        self.node = node
        self._database = database
        self._seconds = seconds
        self._missed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def open(self) -> None:
        """Raises ``CatalogUnavailable``."""
        self._say()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if not self._thread.is_alive():
            return
        self._thread.join(timeout=10)
        try:
            with self._database.writing() as session:
                NodeRepository(session).remove(self.node.id)
        except EpochalError as error:
            log.warning("this node stays among the nodes until it is forgotten: %s", error)

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self._say()
            except EpochalError as error:
                if not self._missed:
                    log.warning("cannot say in the catalog that this node is there: %s", error)
                self._missed = True
            else:
                self._missed = False

    def _say(self) -> None:
        with self._database.writing() as session:
            NodeRepository(session).record_heartbeat(self.node)
