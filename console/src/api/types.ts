/** Names for the bodies of the public API that the console reads. */
import type { components } from "../generated/api";

export type Schemas = components["schemas"];

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}
export type Application = Schemas["ApplicationAnswer"];
export type Epoch = Schemas["EpochRecord"];
export type EpochPage = Schemas["EpochPage"];
export type Execution = Schemas["ExecutionAnswer"];
export type Failure = Schemas["Failure"];
export type Lag = Schemas["ApplicationLag"];
export type LifecycleItem = Schemas["LifecycleItem"];
export type Load = Schemas["LoadAnswer"];
export type Placement = Schemas["PlacementAnswer"];
export type Version = Schemas["VersionAnswer"];
export type Graph = Schemas["GraphAnswer"];
export type GraphNode = Schemas["GraphNodeAnswer"];
export type Column = Pick<Schemas["StateColumn"], "name" | "type"> & Partial<Schemas["ValueColumn"]>;
export type StateTable = Schemas["StateTableAnswer"];
export type StateValue = Schemas["StateValue"];
export type Scan = Schemas["Scan"];
export type KeyHistory = Schemas["KeyHistory"];
export type KeyChange = Schemas["KeyChangeAnswer"];
export type Blame = Schemas["Blame"];
export type LineageNode = Schemas["LineageNode"];
export type Lineage = Schemas["LineageAnswer"];
export type LineageEdge = Schemas["LineageEdge"];
export type SnapshotDiff = Schemas["SnapshotDiff"];
export type DiffRows = Schemas["DiffRows"];
export type RollbackPlan = Schemas["RollbackPlan"];
export type Operation = Schemas["OperationAnswer"];
export type Transaction = Schemas["TransactionAnswer"];
export type Savepoint = Schemas["SavepointAnswer"];
export type Role = "viewer" | "operator" | "author" | "admin";
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type KeyGroupSizes = Schemas["KeyGroupSizes"];
export type StandingQuery = Schemas["StandingQueryAnswer"];
export type StandingQueries = Schemas["StandingQueriesAnswer"];
export type QueryResults = Schemas["QueryResults"];
export type QueryResult = Schemas["QueryResult"];
export type Preflight = Schemas["PreflightAnswer"];
export type Trial = Schemas["TrialAnswer"];
export type Artifact = Schemas["ArtifactAnswer"];
export type Pin = Schemas["SnapshotPinAnswer"];
export type Tag = Schemas["SnapshotTagAnswer"];
export type CollectionPlan = Schemas["CollectionPlanAnswer"];
export type ArtifactSource = Schemas["ArtifactSource"];
export type SourceFile = Schemas["SourceFile"];
export type AuditEntry = Schemas["AuditEntryAnswer"];
export type Token = Schemas["TokenAnswer"];
export type NewToken = Schemas["NewTokenAnswer"];
export type Session = Schemas["ListedSession"];
