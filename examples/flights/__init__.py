"""Flights that left New York in 2013: delays per route, late streaks per aircraft."""
