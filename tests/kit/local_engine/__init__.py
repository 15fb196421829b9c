"""The engine without Spark: the real coordinator, state and sinks over tasks that run in the process of the test."""
