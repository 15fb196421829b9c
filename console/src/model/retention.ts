/** What keeps which snapshot. */
import type { Lineage, LineageNode, Operation, Pin, Savepoint, Tag, Transaction } from "../api/types";

export interface Holder {
  kind: "latest" | "sink" | "pin" | "savepoint" | "fork" | "rollback" | "import" | "operation" | "tag";
  epoch: number;
  branch: string | null;
  /** Name of the savepoint, tag, application, sink or operation. */
  name: string | null;
  by: string | null;
  at: string | null;
  message: string | null;
}

const ORIGINS = new Set(["fork", "rollback", "import"]);

export function holders(
  name: string,
  given: { lineage: Lineage; pins: Pin[]; savepoints: Savepoint[]; tags: Tag[]; operations: Operation[]; transactions: Transaction[]; head: number | null },
): Holder[] {
  const found: Holder[] = [];
  const add = (kind: Holder["kind"], epoch: number, more: Partial<Holder> = {}) => found.push({ kind, epoch, branch: null, name: null, by: null, at: null, message: null, ...more });
  if (given.head !== null) add("latest", given.head);
  for (const each of given.transactions) add("sink", each.epoch, { branch: each.branch, name: each.sink, at: each.prepared_at, message: each.error });
  for (const each of given.pins) add("pin", each.epoch, { branch: each.branch, by: each.created_by, at: each.created_at, message: each.message });
  for (const each of given.savepoints) add("savepoint", each.epoch, { branch: each.branch, name: each.name, by: each.created_by, at: each.created_at, message: each.message });
  const nodes = new Map(given.lineage.nodes.map((node) => [`${node.branch}/${node.epoch}`, node]));
  for (const edge of given.lineage.edges) {
    if (!ORIGINS.has(edge.kind) || edge.from.branch === edge.to.branch) continue;
    const origin = nodes.get(`${edge.from.branch}/${edge.from.epoch}`);
    if (origin?.application !== name) continue;
    const next = nodes.get(`${edge.to.branch}/${edge.to.epoch}`)?.application ?? null;
    add(edge.kind as Holder["kind"], edge.from.epoch, { branch: edge.from.branch, name: next, by: edge.label?.by ?? null, at: edge.label?.at ?? null, message: edge.label?.message ?? null });
  }
  for (const each of given.operations) {
    const epoch = (each.result as { epoch?: unknown } | null)?.epoch;
    if (each.state === "running" && typeof epoch === "number") add("operation", epoch, { name: each.kind, at: each.created_at });
  }
  for (const each of given.tags) add("tag", each.epoch, { branch: each.branch, name: each.name, by: each.created_by, at: each.created_at, message: each.message });
  return found;
}

/** Epochs of the application whose snapshots are not deleted: their number and the oldest one. */
export function stored(name: string, nodes: readonly LineageNode[]): { epochs: number; oldest: LineageNode | null } {
  const mine = nodes.filter((node) => node.application === name && !node.collected && node.state === "committed");
  const oldest = mine.reduce<LineageNode | null>((first, node) => (first === null || node.first < first.first ? node : first), null);
  return { epochs: mine.reduce((sum, node) => sum + node.epochs, 0), oldest };
}
