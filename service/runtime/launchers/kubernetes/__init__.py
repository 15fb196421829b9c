"""Drivers as pods of a Kubernetes cluster. Needs the extra ``kubernetes``."""
