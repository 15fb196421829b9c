"""Mergeable aggregates: partial columns for Spark, a merge for state, the values that people see."""
