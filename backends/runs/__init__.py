"""Runs: the immutable sorted files that the heap backend keeps state in, and views over them (a log-structured store).

:mod:`hashing` gives keys 64 bits, :mod:`run` is one file, :mod:`merging` makes one of several, :mod:`view` reads many
as one, :mod:`shelf` keeps those of a state table on the executor's disk.
"""
