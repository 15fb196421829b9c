"""Figures of ``make scale``: costs by size."""
