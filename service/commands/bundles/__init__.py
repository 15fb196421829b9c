"""Exports and imports: a snapshot as one file, from one control plane to another."""
