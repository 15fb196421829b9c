/** Settings of a proposed version: lines `NAME=VALUE`, as those of `epochal upgrade --set`. */
import type { GraphNode, Json } from "../api/types";
import { isOperator } from "./graph";

export type Settings = Record<string, Json>;

/** Settings with nested ones, which are merged individually. */
const SECTIONS = ["restart", "autoscaling", "parallelisms"];
const LIST = "allow_dropped_state";

export function pairOf(line: string): [string, string] {
  const at = line.indexOf("=");
  return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
}

/** Raises `Error` for a setting without a name, and for one that is set twice. */
export function settingsOf(lines: readonly string[]): Settings {
  const found: Settings = {};
  const seen = new Set<string>();
  for (const line of lines) {
    const [name, text] = pairOf(line);
    if (!name) throw new Error("A setting has no name.");
    if (seen.has(name) && name !== LIST) throw new Error(`${name} is set twice.`);
    seen.add(name);
    const dot = name.indexOf(".");
    const section = name.slice(0, dot);
    if (dot < 0) found[name] = name === LIST ? [...((found[name] as Json[] | undefined) ?? []), ...listOf(text)] : valueOf(text);
    else if (section === "spark") found.spark = { ...(found.spark as Settings | undefined), [name]: text };
    else found[section] = { ...(found[section] as Settings | undefined), [name.slice(dot + 1)]: valueOf(text) };
  }
  return found;
}

/** JSON or text. */
function valueOf(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}

function listOf(text: string): Json[] {
  const value = valueOf(text);
  if (Array.isArray(value)) return value;
  return text.split(",").map((each) => each.trim()).filter(Boolean);
}

/** All settings of a version after the changes. Null removes the parallelism of an operator. */
export function mergedSettings(before: Record<string, unknown>, changes: Settings): Record<string, unknown> {
  const merged: Record<string, unknown> = { ...before, ...changes };
  for (const name of SECTIONS) {
    if (isObject(before[name]) && isObject(changes[name])) merged[name] = { ...before[name], ...changes[name] };
  }
  if (isObject(merged.parallelisms)) merged.parallelisms = Object.fromEntries(Object.entries(merged.parallelisms).filter(([, number]) => number !== null));
  return merged;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Names that can be set, with their current values. */
export function currentSettings(configuration: Record<string, unknown>, nodes: readonly GraphNode[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const [name, value] of Object.entries(configuration)) {
    if (isObject(value)) for (const [member, each] of Object.entries(value)) found.set(name === "spark" ? member : `${name}.${member}`, textOf(each));
    else if (!SECTIONS.includes(name) || name === "autoscaling") found.set(name, textOf(value));
  }
  if (!isObject(configuration.autoscaling)) for (const name of ["least", "greatest"]) found.set(`autoscaling.${name}`, "not set");
  for (const node of nodes) if (isOperator(node) && !found.has(`parallelisms.${node.name}`)) found.set(`parallelisms.${node.name}`, "not set");
  return new Map([...found].sort(([one], [other]) => (one < other ? -1 : 1)));
}

function textOf(value: unknown): string {
  return value === null ? "not set" : typeof value === "string" ? value : Array.isArray(value) ? value.join(",") || "none" : JSON.stringify(value);
}

/** Which field of the form a problem is about, as its text names it: `configuration.NAME: ..`, or the parameters. */
export function fieldOf(slug: string, text: string): { field: "parameters" | "settings" | null; setting: string | null } {
  if (slug === "invalid-parameters") return { field: "parameters", setting: null };
  const found = /^configuration(?:\.([\w.-]+?))?(?::| cannot )/.exec(text.replace(/^Invalid request: /, ""));
  if (found) return { field: "settings", setting: found[1] ?? null };
  return { field: /^(Invalid request: )?parameters\b/.test(text) ? "parameters" : null, setting: null };
}

/** Whether the setting of a line is the one that a problem names, or is nested in it. */
export function isNamed(line: string, setting: string | null): boolean {
  const [name] = pairOf(line);
  return setting !== null && (name === setting || name.startsWith(`${setting}.`));
}
