/** Rows of a scan in pages. Pages far from the view are dropped, and read again by their cursor when it returns. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ProblemError } from "../../api/client";
import type { Scan, StateTable } from "../../api/types";
import type { Looked } from "../../model/commands";
import { firstLimit, nextLimit, readRows } from "./reading";

type Row = Scan["items"][number];

interface Sheet {
  cursor: string | null;
  limit: number;
  first: number;
  length: number;
  rows: Row[] | null;
  size: number;
}

/** Maximum size of the rows in memory, in characters of their answers. */
const MOST_SIZE = 12_000_000;

export class Scroller {
  readonly sheets: Sheet[] = [];
  epoch: number | null = null;
  problem: ProblemError | null = null;
  complete = false;
  started = false;
  /** Grows with each change: a component that gets the same scroller is not rendered again otherwise. */
  version = 0;
  private next: string | null = null;
  private readonly busy = new Set<number>();
  private readonly abort = new AbortController();

  constructor(
    private readonly asked: Looked,
    private readonly open: boolean,
    private readonly table: StateTable,
    private readonly changed: () => void,
  ) {}

  get count(): number {
    const last = this.sheets[this.sheets.length - 1];
    return last ? last.first + last.length : 0;
  }

  row(index: number): Row | undefined {
    const sheet = this.sheetOf(index);
    return sheet?.rows?.[index - sheet.first];
  }

  /** Read the pages of these rows, and the next one near the end. */
  show(first: number, last: number): void {
    if (this.problem) return;
    let near = -1;
    this.sheets.forEach((sheet, index) => {
      if (sheet.first > last || sheet.first + sheet.length <= first) return;
      near = index;
      if (!sheet.rows) void this.load(index);
    });
    if (!this.complete && last >= this.count - 20) void this.load(this.sheets.length);
    this.drop(near);
  }

  stop(): void {
    this.abort.abort();
  }

  private sheetOf(index: number): Sheet | undefined {
    let [low, high] = [0, this.sheets.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const sheet = this.sheets[middle]!;
      if (index < sheet.first) high = middle - 1;
      else if (index >= sheet.first + sheet.length) low = middle + 1;
      else return sheet;
    }
    return undefined;
  }

  private drop(near: number): void {
    let size = this.sheets.reduce((sum, sheet) => sum + (sheet.rows ? sheet.size : 0), 0);
    if (near < 0) return;
    const far = this.sheets.map((_, index) => index).sort((left, right) => Math.abs(right - near) - Math.abs(left - near));
    for (const index of far) {
      const sheet = this.sheets[index]!;
      if (size <= MOST_SIZE || Math.abs(index - near) <= 1) return;
      if (!sheet.rows) continue;
      sheet.rows = null;
      size -= sheet.size;
    }
  }

  private async load(index: number): Promise<void> {
    if (this.busy.has(index)) return;
    this.busy.add(index);
    const last = this.sheets[this.sheets.length - 1];
    const sheet = this.sheets[index];
    const cursor = sheet ? sheet.cursor : this.next;
    const limit = sheet ? sheet.limit : last ? nextLimit(this.table, last.length, last.size) : firstLimit(this.table, 25);
    try {
      const { value, size } = await readRows(this.asked, this.open, limit, cursor, this.abort.signal);
      if (this.abort.signal.aborted) return;
      if (sheet) {
        sheet.rows = value.items;
      } else {
        this.sheets.push({ cursor, limit, first: this.count, length: value.items.length, rows: value.items, size });
        this.next = value.next_cursor;
        this.complete = value.next_cursor === null;
        this.epoch = value.epoch;
      }
      this.started = true;
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.problem = error instanceof ProblemError ? error : new ProblemError(0, "page", String(error));
    } finally {
      this.busy.delete(index);
    }
    this.version += 1;
    this.changed();
  }
}

/** The scroller of a scan. While another one reads its first page, the previous one is shown. */
export function useScroller(asked: Looked, open: boolean, table: StateTable): { scroller: Scroller; stale: boolean; again: () => void } {
  const [, render] = useState(0);
  const [round, setRound] = useState(0);
  const name = JSON.stringify([asked.application, asked.table, asked.values, open, asked.epoch, round]);
  const current = useRef<{ name: string; scroller: Scroller } | null>(null);
  const shown = useRef<Scroller | null>(null);
  if (current.current?.name !== name) {
    if (current.current && current.current.scroller !== shown.current) current.current.scroller.stop();
    current.current = { name, scroller: new Scroller(asked, open, table, () => render((count) => count + 1)) };
  }
  const newest = current.current.scroller;
  useEffect(() => {
    newest.show(0, 0);
  }, [newest]);
  useEffect(
    () => () => {
      current.current?.scroller.stop();
      shown.current?.stop();
    },
    [],
  );
  if (newest.started || newest.problem || shown.current === null) {
    if (shown.current && shown.current !== newest) shown.current.stop();
    shown.current = newest;
  }
  return { scroller: shown.current, stale: shown.current !== newest, again: () => setRound(round + 1) };
}
