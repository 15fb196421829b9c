"""Preflight: what an upgrade would do, before it is done; trials."""
