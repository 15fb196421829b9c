"""Supervision: what runs is made equal to what the catalog wants."""
