"""Standing queries: a small SQL that analysts ask of a running application (RBEA, thesis 4.4.1).

Here is the language: text is parsed (:mod:`~epochal.standing_queries.parsing`), bound to the columns of the stream and
typed as Spark types it (:mod:`~epochal.standing_queries.binding`), and costed; what cannot be answered without risk to
the job is refused (:mod:`~epochal.standing_queries.refusals`) before it is written anywhere. Neither Spark nor Arrow is
needed.
"""
