"""The operations resource: routes -> service -> repository."""
