"""The versions resource: routes -> service -> repository."""
