"""The rekey resource: routes -> service."""
