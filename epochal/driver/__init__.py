"""The driver: one process per execution attempt, which owns the SparkSession and the epoch loop."""
