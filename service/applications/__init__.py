"""The applications resource: routes -> service -> repository."""
