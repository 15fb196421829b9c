"""PostgreSQL by its own two-phase commit: the database validates an epoch's rows before the epoch is decided.

=====  ======================================================================================================
step   what
=====  ======================================================================================================
R1     table and ledger exist; prepared transactions that no manifest can name are rolled back
T1     nothing; a connection is made, and ``BEGIN`` sent, with the first row
T2     rows go into the table, within the open transaction
T3     a row in the ledger, then ``PREPARE TRANSACTION``: checked by the database, durable, invisible
E5     ``COMMIT PREPARED``, one subtask after the other; those unknown to the server are looked up in the ledger
abort  ``ROLLBACK PREPARED``
=====  ======================================================================================================
"""

from epochal.backends.postgresql_two_phase.backend import PostgresqlTwoPhaseBackend

__all__ = ["PostgresqlTwoPhaseBackend"]
