"""The internal resource: routes -> service -> repository."""
