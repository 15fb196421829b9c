"""Figures like those of section 6 of the SDG paper. Each is a function that measures and returns a figure."""
