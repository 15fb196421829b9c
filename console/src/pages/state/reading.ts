/** Reads of state, without loss of digits, in pages that stay small for large values and many columns. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ProblemError, problemOf, send } from "../../api/client";
import type { LiveEvent } from "../../api/events";
import type { Blame, KeyHistory, Scan, StateTable, StateValue } from "../../api/types";
import { questionPath, scanPath, type Looked } from "../../model/commands";
import { parseExact } from "../../model/exact";
import type { Data } from "../../ui/data";

export interface Answer<Value> {
  value: Value;
  /** Size of the answer in characters. */
  size: number;
}

/** Maximum number of values (rows times columns) of a page. */
const CELLS = 20_000;
/** Intended size of a page in characters. */
const SIZE = 2_000_000;
const MOST_ROWS = 500;
const CHANGES = 60;

export async function read<Value>(path: string, signal?: AbortSignal): Promise<Answer<Value>> {
  const response = await send("GET", path, { accept: "application/json" }, undefined, signal);
  if (!response.ok) throw await problemOf(response);
  const text = await response.text();
  return { value: parseExact(text) as Value, size: text.length };
}

/** Rows of the first page, before the size of rows is known. */
export function firstLimit(table: StateTable, most: number): number {
  return Math.max(1, Math.min(most, Math.floor(CELLS / Math.max(1, table.value.length))));
}

/** Rows of the next page, by the size of the previous one. */
export function nextLimit(table: StateTable, rows: number, size: number): number {
  const fitting = rows > 0 ? Math.floor((SIZE * rows) / Math.max(1, size)) : MOST_ROWS;
  return Math.max(1, Math.min(firstLimit(table, MOST_ROWS), fitting));
}

export function readRows(asked: Looked, open: boolean, limit: number, cursor: string | null, signal: AbortSignal): Promise<Answer<Scan>> {
  return read<Scan>(scanPath(asked, open, { limit, cursor }), signal);
}

/** Null: the key has no row. */
export async function readValue(asked: Looked, signal: AbortSignal): Promise<StateValue | null> {
  return orNull([404], async () => (await read<StateValue>(questionPath("value", asked), signal)).value);
}

/** Null: the key has never had a row, or its last change has expired. */
export async function readBlame(asked: Looked, signal: AbortSignal): Promise<Blame | null> {
  return orNull([404, 410], async () => (await read<Blame>(questionPath("blame", asked), signal)).value);
}

async function orNull<Value>(statuses: number[], call: () => Promise<Value>): Promise<Value | null> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof ProblemError && statuses.includes(error.status)) return null;
    throw error;
  }
}

let known: { name: string; history: KeyHistory; change: number } | null = null;

/** The latest changes of a key. After an epoch, only newer ones are read, because each older one costs a file. */
export async function readHistory(asked: Looked, table: StateTable, more: number, signal: AbortSignal): Promise<KeyHistory> {
  const name = `${questionPath("history", asked)} ${more}`;
  const before = known?.name === name ? known : null;
  const first = firstLimit(table, before ? 5 : 10);
  const size = (limit: number) => Math.max(1, Math.min(limit, Math.floor(SIZE / Math.max(1, before?.change ?? 1))));
  const most = CHANGES * (1 + more);
  let found = await read<KeyHistory>(questionPath("history", asked, { limit: size(first) }), signal);
  let history = found.value;
  let total = found.size;
  let pages = 0;
  while (history.next_cursor !== null && history.items.length < most && pages < 20 && met(history, before?.history) < 0 && total < SIZE * 2 * (1 + more)) {
    const perChange = total / Math.max(1, history.items.length);
    const limit = Math.max(1, Math.min(most - history.items.length, firstLimit(table, MOST_ROWS), Math.floor(SIZE / Math.max(1, perChange))));
    found = await read<KeyHistory>(questionPath("history", asked, { limit, cursor: history.next_cursor }), signal);
    history = { ...found.value, items: [...history.items, ...found.value.items] };
    total += found.size;
    pages += 1;
  }
  const at = met(history, before?.history);
  if (before && at >= 0) history = { ...before.history, epoch: history.epoch, items: [...history.items.slice(0, at), ...before.history.items].slice(0, 2000) };
  known = { name, history, change: history.items.length > 0 && at < 0 ? total / history.items.length : (before?.change ?? 1) };
  return history;
}

function met(history: KeyHistory, before: KeyHistory | undefined): number {
  const newest = before?.items[0];
  return newest ? history.items.findIndex((change) => change.branch === newest.branch && change.epoch === newest.epoch) : -1;
}

export function isCommitOf(name: string): (event: LiveEvent) => boolean {
  return (event) => event.application === name && event.kind === "epoch" && event.data.state === "committed";
}

/** The value, or the previous one while another is read: the page keeps its height, and with it its scroll position. */
export function useKept<Value>(data: Data<Value>): { value: Value | undefined; stale: boolean } {
  const kept = useRef<Value | undefined>(undefined);
  if (data.value !== undefined) kept.current = data.value;
  else if (data.problem) kept.current = undefined;
  return { value: kept.current, stale: data.value === undefined && kept.current !== undefined };
}

/** A value that follows after a pause. */
export function usePaused<Value>(value: Value, ms: number): Value {
  const [paused, setPaused] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setPaused(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return paused;
}
