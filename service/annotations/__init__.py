"""Annotations of snapshots: a pin retains one, a tag is a further name, a message is a note."""
