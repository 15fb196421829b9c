/** Keys as the API writes them: values in order, separated by commas, each percent-encoded; null is `%00`. */
import type { Column, StateTable } from "../api/types";
import { valueText } from "./values";

export type KeyPart = string | null;

const NULL = "%00";

export function keyText(values: readonly unknown[]): string {
  return values.map((value) => (value === null || value === undefined ? NULL : encoded(valueText(value)))).join(",");
}

export function keyValues(text: string): KeyPart[] {
  return text.split(",").map((part) => (part === NULL ? null : decoded(part)));
}

/** Columns that name a row, in the order of keys. */
export function addressOf(table: Pick<StateTable, "key" | "sub_key">): Column[] {
  return [...table.key, ...table.sub_key];
}

/** Columns of prefixes: scans of broadcast state omit the key group, which is always 0. */
export function prefixColumns(table: Pick<StateTable, "key" | "sub_key" | "scope">): Column[] {
  return table.scope === "broadcast" ? addressOf(table).slice(1) : addressOf(table);
}

/** The columns of a key: its own values, or only those of a map in partial state, which select all instances. */
export function columnsOf(table: Pick<StateTable, "key" | "sub_key" | "scope">, length: number): Column[] {
  const address = addressOf(table);
  if (table.scope === "partial" && length === table.sub_key.length) return table.sub_key;
  return address.slice(0, length);
}

/** False for a text of one zero character, which paths and queries cannot distinguish from null. */
export function isAddressable(values: readonly unknown[]): boolean {
  return !values.includes("\0");
}

/** A field of the form: `undefined` is not filled in. */
export type Given = KeyPart | undefined;

export interface Prefix {
  values: KeyPart[];
  /** The last value is the beginning of a text. */
  open: boolean;
}

/** Leading values. The last one is the beginning of a text if it is one that may continue. */
export function prefixOf(given: readonly Given[], types: readonly string[]): Prefix {
  const end = given.findIndex((value) => value === undefined);
  const values = (end < 0 ? given : given.slice(0, end)) as KeyPart[];
  const last = values[values.length - 1];
  return { values, open: values.length > 0 && types[values.length - 1] === "string" && last !== null && last !== "" };
}

export function prefixText(prefix: Prefix): string {
  return keyText(prefix.values) + (prefix.open ? "*" : "");
}

/** A star ends a prefix, and apostrophes need more quotation marks in a shell. */
function encoded(text: string): string {
  const sound = text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
  return encodeURIComponent(sound).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
