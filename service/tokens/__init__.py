"""The tokens resource: routes -> service -> repository."""
