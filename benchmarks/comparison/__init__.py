"""Two commits on one machine: what ``make bench-compare`` measures of each, by turns, and what it keeps of that."""
