"""Savepoints: snapshots with a name, retained until they are deleted."""
