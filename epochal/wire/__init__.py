"""Models and HTTP calls that control planes, drivers and clients share. Imports neither the service nor Spark."""
