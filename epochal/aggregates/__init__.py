"""Mergeable aggregates: partial columns for Spark, a merge for state, and final values."""
