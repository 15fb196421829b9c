"""What is only read: look-ups, lineage, differences, lists."""
