"""Versions of an application: upgrades and rescaling at an epoch boundary."""
