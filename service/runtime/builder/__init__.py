"""Builders: subprocesses that build pipelines without the control plane's secrets.

The control plane itself never runs an author's code.
"""
