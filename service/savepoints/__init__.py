"""The savepoints resource: routes -> service -> repository."""
