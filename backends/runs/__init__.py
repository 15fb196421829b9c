"""Runs: the immutable sorted files in which the heap backend stores state, and views over them (a log-structured
store).

:mod:`hashing` computes 64-bit hashes of keys, :mod:`segment` is a part of a :mod:`run`, :mod:`merging` merges several
into one, :mod:`view` reads several as one table, :mod:`run_store` stores those of a state table on the executor's disk.
"""
