"""The transactions resource: what is decided and not committed in a sink, and an administrator's say in it."""
