"""Snapshots: found by epoch, savepoint, tag or time; their manifests; the difference of two."""
