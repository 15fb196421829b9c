"""Programs on state: the applications of the SDG paper as annotated classes."""
