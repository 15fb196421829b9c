"""Artifacts: pipelines' code, stored under its sha256."""
