"""Replicas: a node's own copy of committed state, which answers look-ups (design: state.md).

Each generation of a (branch, queryable state table) is one LMDB environment. One process of a node writes; others may
read. Each committed epoch is applied in one transaction, which also stores the epoch as a mark, so a reader sees
exactly
one committed epoch across all keys. Replicas are derived from the snapshot store alone, may be deleted at any time, and
answer look-ups even while the application is down.
"""
