"""Benchmarks of Epochal. ``make bench`` runs the measures and writes ``RESULTS.md`` in this folder."""
