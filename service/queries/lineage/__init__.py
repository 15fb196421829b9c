"""Lineage: epochs, forks, upgrades and rollbacks as a graph, in JSON, dot and SVG."""
