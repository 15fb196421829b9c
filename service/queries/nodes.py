"""Control planes and query nodes of the catalog."""

from __future__ import annotations

from typing import cast

from epochal.service.catalog.database import Database
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.domain.nodes import Role
from epochal.service.domain.pages import PageRequest
from epochal.wire.administration import NodeAnswer
from epochal.wire.bodies import Page


class NodeService:
    """Read side of nodes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def control_planes(self) -> list[str]:
        """URLs of control planes with a recent heartbeat."""
        with self._database.reading() as session:
            return sorted({node.public_url for node in NodeRepository(session).living() if node.role == "control"})

    def page(self, page: PageRequest) -> Page[NodeAnswer]:
        with self._database.reading() as session:
            nodes = NodeRepository(session)
            gone_before = nodes.gone_before()
            part = nodes.page(page)
            items = [
                NodeAnswer(
                    id=row.id,
                    role=cast(Role, row.role),
                    state="alive" if row.heartbeat_at >= gone_before else "gone",
                    version=row.version,
                    host=row.host,
                    process=row.process,
                    url=row.public_url,
                    internal_url=row.internal_url,
                    started_at=row.started_at,
                    heartbeat_at=row.heartbeat_at,
                )
                for row in part.rows
            ]
            return Page(items=items, next_cursor=part.next_cursor)
