"""Background services: supervision, launchers, replicas, events, builders, operations."""
