"""One wrong number: found by a look-up, traced, tried, rolled back, put right, in the state and in every sink."""
