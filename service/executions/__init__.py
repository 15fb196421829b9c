"""The executions resource: routes -> service -> repository."""
