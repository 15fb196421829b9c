/** What the lineage page draws: pages of the API joined, opened runs, colours of branches, and search. */
import type { LineageEdge, LineageNode } from "../api/types";
import { lanesOf, widthOf, type LaneRow } from "./lanes";

export interface SnapshotKey {
  branch: string;
  epoch: number;
}

/** A snapshot, or a run of epochs. `partial`: a part of a run, of which the API returned no sums. */
export type Item = LineageNode & { partial?: boolean };

export interface Tree {
  nodes: Item[];
  edges: LineageEdge[];
  heads: Record<string, SnapshotKey | null>;
  next_cursor: string | null;
}

export const keyOf = (key: SnapshotKey) => `${key.branch}/${key.epoch}`;

/** The name of a snapshot in an address and in the API: `12`, or `strict:12` of another application. */
export const nameOf = (node: LineageNode, own: string) => (node.application === own ? String(node.epoch) : `${node.application}:${node.epoch}`);

/** The first page read again, followed by what older pages had returned. */
export function refreshed(before: Tree | null, first: Tree): Tree {
  const last = first.nodes.at(-1);
  if (!before || !last || first.next_cursor === null) return first;
  const at = before.nodes.findIndex((node) => keyOf(node) === keyOf(last));
  if (at < 0 || before.nodes.length - 1 === at) return first;
  const known = new Set(first.nodes.map(keyOf));
  const older = before.nodes.slice(at + 1).filter((node) => !known.has(keyOf(node)));
  return joined(first, { ...before, nodes: older, edges: before.edges.filter((edge) => !known.has(keyOf(edge.to))) });
}

/** A page, and the page after it. */
export function joined(newer: Tree, older: Tree): Tree {
  const edges = new Map([...older.edges, ...newer.edges].map((edge) => [keyOf(edge.to), edge]));
  return { heads: newer.heads, nodes: [...newer.nodes, ...older.nodes], edges: [...edges.values()], next_cursor: older.next_cursor };
}

/** The tree, in which these epochs of runs are drawn one by one; the epochs around them stay folded. */
export function withOpened(tree: Tree, opened: readonly { nodes: readonly LineageNode[]; edges: readonly LineageEdge[] }[]): Tree {
  if (opened.length === 0) return tree;
  const shown = new Map(opened.flatMap((each) => each.nodes).map((node) => [keyOf(node), node]));
  const origins = new Map(opened.flatMap((each) => each.edges).map((edge) => [keyOf(edge.to), edge]));
  const edges = new Map(tree.edges.map((edge) => [keyOf(edge.to), edge]));
  const nodes = tree.nodes.flatMap((run): Item[] => {
    if (run.epochs === 1) return [run];
    const inside = [...shown.values()].filter((node) => node.branch === run.branch && run.first <= node.epoch && node.epoch <= run.epoch);
    if (inside.length === 0) return [run];
    inside.sort((one, other) => other.epoch - one.epoch);
    const end = edges.get(keyOf(run));
    const parts: Item[] = [];
    let expected: SnapshotKey | undefined = run;
    const fold = (key: SnapshotKey, first: number, parent: SnapshotKey | undefined) => {
      parts.push({ ...run, epoch: key.epoch, first, epochs: key.epoch - first + 1, partial: true });
      if (parent) edges.set(keyOf(key), { from: parent, to: { branch: key.branch, epoch: key.epoch }, kind: "epoch", label: null, slices: null } as LineageEdge);
    };
    for (const node of inside) {
      if (expected && expected.epoch > node.epoch) fold(expected, node.epoch + 1, node);
      parts.push(node);
      const origin = origins.get(keyOf(node));
      if (origin) edges.set(keyOf(node), origin);
      expected = origin?.from;
    }
    if (expected && expected.branch === run.branch && expected.epoch >= run.first) fold(expected, run.first, end?.from);
    return parts;
  });
  return { ...tree, nodes, edges: [...edges.values()] };
}

export interface Strand {
  application: string;
  colour: number;
  /** Row of the newest snapshot. */
  row: number;
  head: SnapshotKey | null;
}

export interface Line {
  colour: number;
  /** Of a branch that a rollback left. */
  left: boolean;
}

export interface Drawing {
  rows: LaneRow[];
  width: number;
  edges: Map<string, LineageEdge>;
  strands: Strand[];
  /** Names of the applications that continue from a snapshot, by its key. */
  heads: Map<string, string[]>;
  line: (key: string | undefined) => Line;
  /** Whether the row is the newest of its branch in the drawing. */
  tips: boolean[];
}

export const COLOURS = 6;
const NO_LINE: Line = { colour: 0, left: false };

export function drawingOf(tree: Tree | null, own: string): Drawing {
  const nodes = tree?.nodes ?? [];
  const edges = new Map((tree?.edges ?? []).map((edge) => [keyOf(edge.to), edge]));
  const newest = new Map<string, number>();
  const tips: boolean[] = [];
  const branches = new Set<string>();
  nodes.forEach((node, row) => {
    if (!newest.has(node.application)) newest.set(node.application, row);
    tips.push(!branches.has(node.branch));
    branches.add(node.branch);
  });
  const names = [...newest.keys()].sort((one, other) => Number(other === own) - Number(one === own));
  const colours = new Map(names.map((name, index) => [name, index % COLOURS]));
  const strands = names.map((name): Strand => {
    const row = newest.get(name)!;
    return { application: name, colour: colours.get(name)!, row, head: tree?.heads[name] ?? null };
  });
  const trunk = tree?.heads[own] ?? nodes[newest.get(own) ?? 0];
  const rows = lanesOf(
    nodes.map((node) => {
      const edge = edges.get(keyOf(node));
      return { key: keyOf(node), parents: edge ? [keyOf(edge.from)] : [], branch: node.branch };
    }),
    trunk && keyOf(trunk),
  );
  const current = currentBranches(nodes, edges, strands);
  // An epoch after the head that is not committed yet continues it.
  const isLeft = (node: Item) => {
    const last = current.get(`${node.application} ${node.branch}`);
    return last === undefined || (node.epoch > last && node.state === "committed");
  };
  const lines = new Map(nodes.map((node) => [keyOf(node), { colour: colours.get(node.application)!, left: isLeft(node) }]));
  const heads = new Map<string, string[]>();
  for (const [name, head] of Object.entries(tree?.heads ?? {})) if (head) heads.set(keyOf(head), [...(heads.get(keyOf(head)) ?? []), name]);
  return { rows, width: widthOf(rows), edges, strands, heads, tips, line: (key) => (key === undefined ? NO_LINE : (lines.get(key) ?? NO_LINE)) };
}

/** By application and branch, the last epoch that its head continues; a rollback has left later ones. */
function currentBranches(nodes: readonly Item[], edges: Map<string, LineageEdge>, strands: readonly Strand[]): Map<string, number> {
  const origins = new Map<string, SnapshotKey>();
  for (const node of nodes) {
    const origin = edges.get(keyOf(node))?.from;
    if (origin && origin.branch !== node.branch) origins.set(node.branch, origin);
  }
  const found = new Map<string, number>();
  for (const { application, head, row } of strands) {
    let branch: string | undefined = (head ?? nodes[row])?.branch;
    // Until its next epoch, an application that was rolled back has its head on the branch that it left.
    let last = head?.epoch ?? Infinity;
    while (branch !== undefined && !found.has(`${application} ${branch}`)) {
      found.set(`${application} ${branch}`, last);
      const origin = origins.get(branch);
      branch = origin?.branch;
      last = origin?.epoch ?? Infinity;
    }
  }
  return found;
}

/** Texts by which a snapshot is found. */
export function matches(node: Item, kind: string | undefined, words: string): boolean {
  const number = Number(words.replaceAll(",", ""));
  if (Number.isInteger(number) && node.first <= number && number <= node.epoch) return true;
  const texts = [node.application, node.branch, node.message ?? "", kind ?? "", `version ${node.version}`, node.filename, node.artifact, ...node.savepoints.map((each) => `savepoint ${each}`), ...node.tags.map((each) => `tag ${each}`), node.pinned ? "pinned" : "", ...node.changes.map((change) => change.kind)];
  return texts.some((text) => text.toLowerCase().includes(words.toLowerCase()));
}

/** The run of an application in which an epoch is folded. */
export function runWith(tree: Tree, application: string, epoch: number): Item | undefined {
  return tree.nodes.find((node) => node.epochs > 1 && node.application === application && node.first <= epoch && epoch <= node.epoch);
}
