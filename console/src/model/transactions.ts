/** Transactions that sinks have not committed, by sink. */
import type { Transaction } from "../api/types";

export interface SinkQueue {
  sink: string;
  state: "blocked" | "committing" | "waiting for a driver";
  error: string | null;
  since: string | null;
  /** The transaction that the sink commits next. */
  next: Transaction;
  /** Later ones, by epoch. A sink commits its epochs in order, so that they wait for `next`. */
  behind: Transaction[];
}

/** Blocked sinks come first, then by name. */
export function bySink(transactions: readonly Transaction[]): SinkQueue[] {
  const queues = new Map<string, Transaction[]>();
  for (const each of transactions) queues.set(each.sink, [...(queues.get(each.sink) ?? []), each]);
  return [...queues.values()]
    .map((all) => {
      const [next, ...behind] = all.sort((one, other) => one.epoch - other.epoch) as [Transaction, ...Transaction[]];
      const state = next.error !== null ? "blocked" : next.driver ? "committing" : "waiting for a driver";
      return { sink: next.sink, state, error: next.error, since: next.waiting_since, next, behind } as SinkQueue;
    })
    .sort((one, other) => Number(one.error === null) - Number(other.error === null) || (one.sink < other.sink ? -1 : 1));
}
