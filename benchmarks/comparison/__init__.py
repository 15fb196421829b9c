"""Comparison of two commits on one machine for ``make bench-compare``: measures, verdicts, history."""
