/** What an application is behind with, and what it waits for, as texts. */
import type { Lag } from "../api/types";
import { count, duration } from "./format";

/** The source that is furthest behind; null: no source can tell. */
export function behind(lag: Lag): { text: string; late: boolean } | null {
  const sources = Object.values(lag.sources);
  const sum = (values: (number | null)[]) => (values.every((value) => value === null) ? null : values.reduce<number>((total, value) => total + (value ?? 0), 0));
  const seconds = sources.map((source) => source.seconds).filter((value) => value !== null);
  const records = sum(sources.map((source) => source.records));
  const files = sum(sources.map((source) => source.files));
  const parts = [...(records ? [count(records, "record")] : []), ...(files ? [count(files, "file")] : [])];
  if (seconds.length > 0) {
    const most = Math.max(...seconds);
    if (most === 0 && parts.length === 0) return { text: "no lag", late: false };
    return { text: [`${duration(most * 1000)} behind`, ...parts].join(", "), late: most > LATE_SECONDS };
  }
  if (parts.length > 0) return { text: `${parts.join(", ")} behind`, late: false };
  return records === null && files === null ? null : { text: "no lag", late: false };
}

const LATE_SECONDS = 60;

/** What keeps an application from going on: sinks, the store, and sources that do not answer. */
export function waits(lag: Lag | undefined, now: number): string[] {
  if (!lag) return [];
  const since = (at: string) => duration(Math.max(0, now - Date.parse(at)));
  return [
    ...(lag.store_away_since ? [`waits for the store, ${since(lag.store_away_since)}`] : []),
    ...Object.entries(lag.blocked_sinks).map(([sink, at]) => `waits for sink ${sink}, ${since(at)}`),
    ...Object.entries(lag.sources).filter(([, source]) => !source.reachable).map(([source]) => `source ${source} does not answer`),
  ];
}
