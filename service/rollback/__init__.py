"""Rollback: planned, confirmed, and carried out by moving the application to a new branch."""
