"""Flights through Kafka: a topic of flights in, topics of delays and of alerts out, exactly once."""
