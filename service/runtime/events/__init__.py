"""Events: what changed, to whoever listens; kept for a while, so that a client that reconnects misses nothing."""
