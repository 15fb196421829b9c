/** What a page shows, as commands that do the same outside of it. */
import { withQuery, type Query } from "../api/client";

export interface Commands {
  cli: string;
  curl: string;
  python: string;
}

export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
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
  return JSON.stringify(value);
}

export function curl(path: string, query: Query = {}, body?: unknown): string {
  const address = quoted(`${globalThis.location?.origin ?? ""}${withQuery(path, query)}`);
  const sent = body === undefined ? "" : ` --json ${quoted(JSON.stringify(body))}`;
  return `curl -H "Authorization: Bearer $EPOCHAL_TOKEN"${sent} ${address}`;
}

/** A program that calls the client. `expression` is printed. */
export function python(project: string, expression: string): string {
  const scope = project === "default" ? "" : `project=${literal(project)}`;
  return `from epochal.client import Client\n\nwith Client(${scope}) as client:\n    print(${expression})`;
}

/** An `epochal` command in a project. */
export function epochal(project: string, ...words: string[]): string {
  return shell("epochal", ...(project === "default" ? [] : ["--project", project]), ...words);
}
