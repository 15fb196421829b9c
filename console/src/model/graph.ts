/** Figures of the nodes and edges of a graph. A figure that is not known is no text, never 0. */
import type { Epoch, Graph, GraphNode, Load, StateTable } from "../api/types";
import { bytes, count, duration, moment, rate, short } from "./format";

export interface NodeFigures {
  /** At most two lines, the first with the rate or the share of time. */
  lines: string[];
  /** What later epochs wait for at this node. */
  waits: string;
  /** The operator whose subtasks work most of the time. */
  slowest: boolean;
}

export interface Measured {
  graph: Graph;
  /** Only of a running application. */
  load: Load | undefined;
  tables: readonly StateTable[];
  /** Newest first. */
  epochs: readonly Epoch[];
}

const ENDS = new Set(["source", "static", "transform", "watermark", "side", "feedback", "close", "sink"]);

export function isOperator(node: GraphNode): boolean {
  return !ENDS.has(node.type);
}

/** Seconds of work per subtask and second, from 0 to 1; null if it is not known. */
export function shareOf(load: Load | undefined, operator: string): number | null {
  const found = load?.operators[operator];
  if (!load || !found || load.seconds <= 0) return null;
  return (found.busy_seconds ?? 0) / load.seconds / Math.max(1, found.subtasks ?? 1);
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** The operator that is busy for the largest share of time, of at least two that are measured. */
export function slowestOf(load: Load | undefined): string | null {
  const shares = Object.keys(load?.operators ?? {})
    .map((name): [string, number] => [name, shareOf(load, name) ?? 0])
    .sort((one, other) => other[1] - one[1]);
  const first = shares[0];
  return first && shares.length > 1 && first[1] > 0 ? first[0] : null;
}

function perSecond(load: Load | undefined, rows: number | null | undefined): number | null {
  return load && load.seconds > 0 && rows !== null && rows !== undefined ? rows / load.seconds : null;
}

/** Rows per second that a source reads, an operator receives or a sink writes. */
export function rateOfNode(load: Load | undefined, node: GraphNode): number | null {
  if (node.type === "source") return perSecond(load, load?.sources?.[node.name]?.rows);
  if (node.type === "sink") return perSecond(load, load?.sinks?.[node.name]?.rows);
  return isOperator(node) ? perSecond(load, load?.operators[node.name]?.rows) : null;
}

/** Rows per second on the edge between two nodes, if one of them has it as its only input or is its source. */
export function rateOfEdge(load: Load | undefined, from: GraphNode, to: GraphNode): number | null {
  const only = (to.inputs ?? []).length === 1;
  const known = only && (to.type === "sink" || isOperator(to)) ? rateOfNode(load, to) : null;
  return known ?? (from.type === "source" ? rateOfNode(load, from) : null);
}

/** Whether an edge can have a rate, so that the drawing has room for it. */
export function hasRate(from: GraphNode, to: GraphNode): boolean {
  return from.type === "source" || ((to.inputs ?? []).length === 1 && (to.type === "sink" || isOperator(to)));
}

export function lagOf(load: Load | undefined, source: string): string {
  const lag = load?.sources?.[source];
  if (!lag?.reachable) return "";
  if (lag.records === 0 || lag.files === 0) return "no lag";
  const behind = [
    lag.seconds !== null ? duration(lag.seconds * 1000) : "",
    lag.records !== null ? `${short(lag.records)} ${lag.records === 1 ? "row" : "rows"}` : lag.files !== null ? count(lag.files, "file") : "",
  ].filter(Boolean);
  return behind.length > 0 ? `lag ${behind.join(", ")}` : "";
}

/** Keys of the state of an operator, and bytes of all of its files. */
export function stateOf({ load, tables }: Pick<Measured, "load" | "tables">, operator: string): string {
  const own = tables.filter((table) => table.operator === operator);
  const rows = own.every((table) => table.rows !== null) ? own.reduce((sum, table) => sum + (table.rows ?? 0), 0) : null;
  const sizes = own.map((table) => load?.tables?.[table.table]?.bytes);
  const size = sizes.every((each) => each !== undefined) ? sizes.reduce<number>((sum, each) => sum + (each ?? 0), 0) : null;
  if (own.length === 0) return "";
  return [rows === null ? "" : `${short(rows)} ${rows === 1 ? "row" : "rows"}`, size === null ? "" : `${bytes(size)} files`].filter(Boolean).join(", ");
}

/** The watermark of a declaration or an operator after the newest epoch that has it. */
export function watermarkOf(epochs: readonly Epoch[], name: string): string {
  const found = epochs.find((epoch) => epoch.watermarks[name])?.watermarks[name];
  if (!found) return "";
  if (found.ended) return "all input has ended";
  const until = found.fire ? moment(found.fire) : "";
  return found.idle ? [until, "idle"].filter(Boolean).join(", ") : until;
}

/** A duration up to now. A server's clock that is ahead is 0 ms. */
function past(since: string, now: number): string {
  return duration(Math.max(0, Math.floor((now - Date.parse(since)) / 1000) * 1000));
}

export function figuresOf(measured: Measured, node: GraphNode, slowest: string | null, now: number): NodeFigures {
  const { load, epochs } = measured;
  const found = rateOfNode(load, node);
  const speed = found === null ? "" : rate(found);
  const kind = typeof node.description?.kind === "string" ? node.description.kind : "";
  if (node.type === "source") {
    const away = load?.sources?.[node.name]?.reachable === false;
    return { lines: [speed || kind, away ? "" : lagOf(load, node.name)], waits: away ? "does not answer" : "", slowest: false };
  }
  if (node.type === "sink") {
    const since = load?.sinks?.[node.name]?.blocked_since;
    return { lines: [speed || kind, speed ? kind : ""], waits: since ? `commits fail for ${past(since, now)}` : "", slowest: false };
  }
  if (node.type === "static") return { lines: [kind, ""], waits: "", slowest: false };
  if (node.type === "watermark") return { lines: [watermarkOf(epochs, node.name), ""], waits: "", slowest: false };
  if (node.type === "feedback") {
    const flying = epochs.find((epoch) => epoch.in_flight)?.in_flight?.[node.name];
    return { lines: [flying === undefined ? "" : `${count(flying, "record")} in flight`, ""], waits: "", slowest: false };
  }
  if (!isOperator(node)) return { lines: ["", ""], waits: "", slowest: false };
  const share = shareOf(load, node.name);
  const state = stateOf(measured, node.name);
  const away = state && load?.store_away_since;
  return {
    lines: [share === null ? "" : `${percent(share)} busy`, state],
    waits: away ? `store away for ${past(away, now)}` : "",
    slowest: node.name === slowest,
  };
}

/** The name of a node in an address: its own, or its number if several nodes have this name. */
export function addressOf(graph: Graph, node: GraphNode): string {
  return graph.nodes.filter((each) => each.name === node.name).length === 1 ? node.name : String(node.id);
}

export function nodeAt(graph: Graph, text: string | null): GraphNode | undefined {
  if (text === null) return undefined;
  return graph.nodes.find((node) => node.name === text) ?? graph.nodes.find((node) => String(node.id) === text);
}
