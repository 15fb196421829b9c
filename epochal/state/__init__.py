"""State tables: their types, key groups, and the bytes of keys and values. No Spark session, no I/O."""
