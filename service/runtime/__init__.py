"""What runs by itself: supervision, launchers, replicas, events, builders, background operations."""
