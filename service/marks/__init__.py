"""The marks resource: what people say of snapshots. A pin keeps one, a tag names it, a message is about it."""
