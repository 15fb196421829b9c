"""Declarations of authors, before a graph exists: names, expressions, schemas, states, keyed functions, windows."""
