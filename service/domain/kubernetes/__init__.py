"""Drivers as pods: what their manifests say, how Spark gets executors, and what a pod's status means. Pure."""
