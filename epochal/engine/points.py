"""The driver's fault points, one or more for every numbered step of the protocol."""

from __future__ import annotations

from epochal.faults import declare

E1_BEFORE = declare("E1.before", "before the slices of an epoch are chosen")
E1_SLICES_CHOSEN = declare("E1.slices-chosen", "slices chosen, no catalog row yet")
E1_OPENED = declare("E1.opened", "catalog row is started")
E2_BEFORE = declare("E2.before-run", "before the Spark job is submitted")
E2_RAN = declare("E2.ran", "the Spark job has returned")
E3_COLLECTED = declare("E3.collected", "exactly one handle per subtask is known")
E4_BEFORE_MANIFEST = declare("E4.before-manifest", "before the manifest is written")
E4_MANIFEST_WRITTEN = declare("E4.manifest-written", "manifest durable, catalog not yet asked")
E4_PREPARED = declare("E4.prepared", "the compare-and-set landed: the epoch is decided")
E5_BEFORE_SINK = declare("E5.before-sink", "before one sink's commit")
E5_SINK_COMMITTED = declare("E5.sink-committed", "after one sink's commit")
E5_GIVEN_UP = declare("E5.given-up", "a sink has committed an epoch without its rows, which are still staged")
E6_BEFORE = declare("E6.before-publish", "all sinks committed, catalog row still prepared")
E6_PUBLISHED = declare("E6.published", "catalog row is committed, sources not yet told")
E6_ACKNOWLEDGED = declare("E6.acknowledged", "sources told")
E7_BEFORE = declare("E7.before-retain", "before the epoch's losers are swept")
E7_SWEPT = declare("E7.swept", "losers swept, before compaction")
E7_BASES_WRITTEN = declare("E7.bases-written", "bases written, named by no manifest yet")
ABORT_BEFORE = declare("abort.before-sweep", "the epoch has failed, its files are still there")
ABORT_SWEPT = declare("abort.swept", "the failed epoch's files are removed")
R1_BEGUN = declare("R1.begun", "this attempt is the current one")
R1_FENCED = declare("R1.sinks-fenced", "sinks taken over from earlier attempts")
R2_FOUND = declare("R2.found", "latest prepared snapshot read")
R3_FINISHED = declare("R3.finished", "prepared epochs committed")
R4_SWEPT = declare("R4.swept", "an undecided epoch's files removed, its row still started")
R4_ABORTED = declare("R4.aborted", "undecided epochs aborted")
R5_GO_ON = declare("R5.go-on", "before the first epoch of this attempt")
