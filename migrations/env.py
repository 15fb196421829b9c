"""Entry point of Alembic. There is no alembic.ini; the caller passes the connection."""

from __future__ import annotations

from alembic import context

from epochal.service.catalog.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=False,  # the caller's transaction spans all migrations
    render_as_batch=True,
)
context.run_migrations()
