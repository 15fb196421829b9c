"""The snapshots resource: routes -> service -> repository."""
