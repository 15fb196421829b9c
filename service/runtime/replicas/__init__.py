"""Replicas: a node's own copy of committed state, from which look-ups are answered (design: state.md).

One LMDB environment per generation of a (branch, queryable state table); one process of a node writes, others may read.
Each committed epoch is applied in one transaction, with a mark inside that says which, so that a reader sees exactly
one committed epoch across all keys. Replicas follow from the snapshot store alone, may be deleted at any time, and
serve also while the application is down.
"""
