"""The health resource: routes -> service -> repository."""
