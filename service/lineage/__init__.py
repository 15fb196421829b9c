"""The lineage resource: routes -> service -> repository."""
