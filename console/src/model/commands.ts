/** What a page shows, as commands that do the same outside of it. */
import { resource, withQuery, type Query } from "../api/client";
import { keyText, prefixText } from "./keys";

export interface Commands {
  cli: string;
  curl: string;
  python: string;
}

export function quoted(text: string): string {
  // zsh replaces a word that begins with an equals sign.
  return /^(?!=)[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export function shell(...words: string[]): string {
  return words.map(quoted).join(" ");
}

/** A Python literal. JSON texts are Python texts. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${literal(member)}`);
    return `{${members.join(", ")}}`;
  }
  if (typeof value === "bigint") return String(value);
  return JSON.stringify(value).replace(INVISIBLE, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Characters that would make a copied program look different from what it does. */
export const INVISIBLE = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function curl(path: string, query: Query = {}, body?: unknown): string {
  const address = quoted(`${globalThis.location?.origin ?? ""}${withQuery(path, query)}`);
  const sent = body === undefined ? "" : ` --json ${quoted(JSON.stringify(body))}`;
  return `curl -H "Authorization: Bearer $EPOCHAL_TOKEN"${sent} ${address}`;
}

/** A program that calls the client, and prints the value of each expression. */
export function python(project: string, ...expressions: string[]): string {
  const scope = project === "default" ? "" : `project=${literal(project)}`;
  return `from epochal.client import Client\n\nwith Client(${scope}) as client:\n${expressions.map((each) => `    print(${each})`).join("\n")}`;
}

/** An `epochal` command in a project. */
export function epochal(project: string, ...words: string[]): string {
  return shell("epochal", ...(project === "default" ? [] : ["--project", project]), ...words);
}

/** A key of a state table, or a prefix, as of an epoch or the latest one. */
export interface Looked {
  project: string;
  application: string;
  table: string;
  values: readonly (string | null)[];
  types: readonly string[];
  epoch: string | null;
}

export type Question = "value" | "history" | "blame";

/** The resource that answers a question about a key. The key may be an empty text, so that it is always part of the query. */
export function questionPath(question: Question, asked: Looked, more: Query = {}): string {
  const base = resource(asked.project, "applications", asked.application, "state", asked.table, { value: "keys", history: "history", blame: "blame" }[question]);
  const [, rest] = withQuery("", { epoch: asked.epoch, ...more }).split("?");
  return `${base}?key=${encodeURIComponent(keyText(asked.values))}${rest ? `&${rest}` : ""}`;
}

export function questionCommands(question: Question, asked: Looked): Commands {
  const option = { value: [], history: ["--history"], blame: ["--blame"] }[question];
  const call = { value: "get", history: "history", blame: "blame" }[question];
  return {
    cli: stateCommand(asked, ["get", ...option], keyText(asked.values)),
    curl: curl(questionPath(question, asked)),
    python: python(asked.project, `${stateOf(asked)}.${call}(${callArguments(asked)})`),
  };
}

export function scanPath(asked: Looked, open: boolean, more: Query = {}): string {
  const base = resource(asked.project, "applications", asked.application, "state", asked.table, "scan");
  return withQuery(base, { prefix: prefixText({ values: [...asked.values], open }), epoch: asked.epoch, ...more });
}

export function scanCommands(asked: Looked, open: boolean): Commands {
  const prefix = prefixText({ values: [...asked.values], open });
  const options = open ? ["begins_with=True"] : [];
  return {
    cli: stateCommand(asked, ["scan"], prefix),
    curl: curl(scanPath(asked, open)),
    python: python(asked.project, `${stateOf(asked)}.scan(${callArguments(asked, options)})`),
  };
}

/** Options come first: a key that begins with a hyphen comes after two hyphens. */
function stateCommand(asked: Looked, command: string[], text: string): string {
  const at = asked.epoch === null ? [] : ["--epoch", asked.epoch];
  const last = command[0] === "scan" && text === "" ? [] : [...(text.startsWith("-") ? ["--"] : []), text];
  return epochal(asked.project, ...command, ...at, asked.application, asked.table, ...last);
}

function stateOf(asked: Looked): string {
  return `client.application(${literal(asked.application)}).state(${literal(asked.table)})`;
}

function callArguments(asked: Looked, options: string[] = []): string {
  const values = asked.values.map((value, index) => (value !== null && INTEGERS.test(asked.types[index] ?? "") && /^-?\d+$/.test(value) ? String(BigInt(value)) : literal(value)));
  return [...values, ...options, ...(asked.epoch === null ? [] : [`epoch=${Number(asked.epoch)}`])].join(", ");
}

const INTEGERS = /^(tinyint|smallint|int|bigint)$/;
