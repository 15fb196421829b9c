"""One wrong number: found by a look-up, traced, rolled back and corrected, in state and in every sink."""
