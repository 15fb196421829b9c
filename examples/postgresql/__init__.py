"""A table in PostgreSQL with the delays of each route, updated with each flight; unused routes are deleted."""
