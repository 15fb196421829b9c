"""The epochs resource: routes -> service -> repository."""
