"""A table kept in PostgreSQL: each route's delays, replaced as flights come in; routes that are no more, deleted."""
