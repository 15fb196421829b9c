"""Figures like those of section 6 of the SDG paper, each a function that measures and gives its series."""
