"""Alembic's entry. There is no alembic.ini: the connection is handed over by whoever runs the migration."""

from __future__ import annotations

from alembic import context

from epochal.service.catalog.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=False,  # the caller's transaction holds all of it
    render_as_batch=True,
)
context.run_migrations()
