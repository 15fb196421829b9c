"""Flights through Kafka: reads a topic of flights, writes topics of delays and alerts, exactly once."""
