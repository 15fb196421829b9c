"""Look-ups: state by key, from replicas (committed, uncommitted) and from snapshots (time travel)."""
