"""Pipelines are built in subprocesses, without the control plane's secrets: no author's code ever runs in it."""
