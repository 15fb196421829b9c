"""Retention and garbage collection: which snapshots are kept, and the removal of what nobody needs any more."""
