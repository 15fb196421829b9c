"""Nodes of a catalog. Each node records a heartbeat by the database clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from epochal.service.catalog.models import NodeRow
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import database_now
from epochal.service.domain.nodes import FORGOTTEN_SECONDS, GONE_SECONDS, Node, Role
from epochal.service.domain.pages import PageRequest, Part


class NodeRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def record_heartbeat(self, node: Node) -> None:
        """Record a heartbeat of the node, and delete the rows of nodes whose last heartbeat is long past."""
        moment = database_now(self._session)
        row = self._session.get(NodeRow, node.id)
        if row is None:
            row = NodeRow(id=node.id, started_at=moment)
            self._session.add(row)
        row.role, row.version = node.role, node.version
        row.host, row.boot, row.process = node.host, node.boot, node.process
        row.public_url, row.internal_url = node.public_url, node.internal_url
        row.heartbeat_at = moment
        forgotten = NodeRow.heartbeat_at < moment - timedelta(seconds=FORGOTTEN_SECONDS)
        self._session.execute(delete(NodeRow).where(forgotten))

    def remove(self, id: str) -> None:
        """Delete the row of a node that has stopped."""
        self._session.execute(delete(NodeRow).where(NodeRow.id == id))

    def living(self) -> Sequence[Node]:
        """Nodes with a recent heartbeat."""
        query = select(NodeRow).where(NodeRow.heartbeat_at >= self.gone_before()).order_by(NodeRow.id)
        return [_node(row) for row in self._session.scalars(query)]

    def gone_before(self) -> datetime:
        """Nodes whose last heartbeat is before this time count as gone."""
        return database_now(self._session) - timedelta(seconds=GONE_SECONDS)

    def page(self, page: PageRequest) -> Part:
        return paginate(self._session, select(NodeRow), page, [NodeRow.id])


def _node(row: NodeRow) -> Node:
    return Node(
        id=row.id,
        role=cast(Role, row.role),
        host=row.host,
        boot=row.boot,
        process=row.process,
        public_url=row.public_url,
        internal_url=row.internal_url,
        version=row.version,
    )
