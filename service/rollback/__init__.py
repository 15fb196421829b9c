"""The rollback resource: routes -> service -> repository."""
