"""The language of standing queries: a small SQL for queries to a running application (RBEA, thesis 4.4.1).

A text is parsed (:mod:`~epochal.standing_queries.parsing`), bound to the columns of the stream with Spark's types, and
costed (:mod:`~epochal.standing_queries.binding`). A query that could endanger the job is refused before it is stored
(:mod:`~epochal.standing_queries.refusals`). This package requires neither Spark nor Arrow.
"""
