"""Snapshots: manifests, the files they name, the chains that make up a state table, and the store that holds them."""
