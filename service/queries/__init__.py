"""Read-only queries: look-ups, lineage, differences, lists."""
