"""Events: distribution of changes to listeners; retained for a while, so that a client that reconnects misses none."""
