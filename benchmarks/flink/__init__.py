"""Nexmark's queries in Apache Flink's SQL, beside Epochal and Structured Streaming (``make bench-nexmark-flink``)."""
