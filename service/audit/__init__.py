"""The audit resource: routes -> service -> repository."""
