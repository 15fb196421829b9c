"""Alembic migrations of the catalog; run by :mod:`epochal.service.catalog.migration`, packaged in the wheel."""
