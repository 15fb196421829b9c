"""Sinks whose target is a table of versions: the protocol of their commits, and what they share."""
