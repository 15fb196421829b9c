/** What differs between versions of an application, and the version that an author proposes. */
import type { GraphNode, Json, Preflight, Version } from "../api/types";

export interface PartDifference {
  name: string;
  type: string;
  what: "added" | "removed" | "changed";
  /** Members of the description whose values differ, as JSON. */
  members: { name: string; before: string | null; after: string | null }[];
}

/** Parts of the graph that differ. Transformations are named by their expressions, so that a changed one is removed and added. */
export function graphDifferences(before: readonly GraphNode[], after: readonly GraphNode[]): PartDifference[] {
  const was = byName(before);
  const now = byName(after);
  const found: PartDifference[] = [];
  for (const [name, node] of now) {
    const old = was.get(name);
    const members = old ? differing(flat(old), flat(node)) : [];
    if (!old) found.push({ name: node.name, type: node.type, what: "added", members: [] });
    else if (members.length > 0) found.push({ name: node.name, type: node.type, what: "changed", members });
  }
  for (const [name, node] of was) if (!now.has(name)) found.push({ name: node.name, type: node.type, what: "removed", members: [] });
  return found;
}

function byName(nodes: readonly GraphNode[]): Map<string, GraphNode> {
  return new Map(nodes.map((node) => [`${node.type} ${node.name}`, node]));
}

function flat(node: GraphNode): Record<string, unknown> {
  return { ...members(node.description ?? {}, ""), ...members(node.columns ?? {}, "column ") };
}

function members(values: Record<string, unknown>, prefix: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) Object.assign(found, members(value as Record<string, unknown>, `${prefix}${name}.`));
    else found[`${prefix}${name}`] = value;
  }
  return found;
}

/** Members of two objects that differ, as JSON texts; `null` for a missing one. */
export function differing(before: Record<string, unknown>, after: Record<string, unknown>): PartDifference["members"] {
  const text = (value: unknown) => (value === undefined ? null : typeof value === "string" ? value : JSON.stringify(value));
  return [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .map((name) => ({ name, before: text(before[name]), after: text(after[name]) }))
    .filter((each) => each.before !== each.after);
}

/** Settings of two versions that differ, with those of sections by their full names. */
export function settingDifferences(before: Version, after: Version): PartDifference["members"] {
  return differing(members(before.configuration, ""), members(after.configuration, ""));
}

/** A version that an author proposes. Members without a value are those of the latest version. */
export interface Proposal {
  artifact: string | null;
  /** JSON as it was typed, or `null`. */
  parameters: string | null;
  /** Lines `NAME=VALUE`. */
  settings: string[];
  changed: string[];
  partial: string[];
  dropped: string[];
}

/** Raises `Error` for parameters that are not a JSON object. */
export function parametersOf(text: string | null): Record<string, Json> | null {
  if (text === null) return null;
  let value: unknown;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch (error) {
    throw new Error(`The parameters are not valid JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The parameters are not a JSON object.");
  return value as Record<string, Json>;
}

export interface Consent {
  kind: "changed" | "partial" | "dropped";
  name: string;
  effect: string;
}

/** Differences that an upgrade accepts only by name. */
export function consents(report: Preflight): Consent[] {
  const found: Consent[] = [];
  const add = (kind: Consent["kind"], name: string, effect: string) => {
    if (!found.some((each) => each.kind === kind && each.name === name)) found.push({ kind, name, effect });
  };
  for (const table of report.comparison.tables) {
    for (const change of table.changed) {
      const name = change.column === null ? table.operator : `${table.operator}.${change.column}`;
      if (table.verdict === "changed" || change.accepted) add("changed", name, `${name} combines rows of both meanings`);
    }
    for (const column of table.partial) add("partial", `${table.operator}.${column}`, `${table.operator}.${column} counts only rows from this upgrade on`);
    if (table.verdict === "dropped") add("dropped", table.table, `the state table ${table.table} is dropped`);
    for (const column of table.dropped) add("dropped", `${table.table}.${column}`, `${table.table} loses the column ${column}`);
  }
  return found;
}

/** Numbers of state tables by what happens to them. */
export function tally(report: Preflight): { kept: number; added: number; dropped: number; refused: number } {
  const tables = report.comparison.tables;
  const of = (...verdicts: string[]) => tables.filter((table) => verdicts.includes(table.verdict)).length;
  return { kept: of("same", "evolved", "changed"), added: of("added"), dropped: of("dropped"), refused: of("refused") };
}
