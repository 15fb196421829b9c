"""Drivers as pods: their manifests, Spark's settings for executors, and the meaning of a pod's status. Pure."""
