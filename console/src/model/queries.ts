/** Windows of standing queries, and their results in the order in which people read them. */
import type { QueryResult, StandingQuery } from "../api/types";
import { jsonText } from "./exact";

const UNIT_MS: Record<string, number> = { second: 1000, minute: 60_000, hour: 3_600_000, day: 86_400_000, week: 604_800_000 };
const PART = /(\d+)\s*(second|minute|hour|day|week)s?/gi;

/** Milliseconds of an interval such as `1 hour 30 minutes`; null for another text. */
export function intervalMs(text: string): number | null {
  let sum = 0;
  const rest = text.replace(PART, (_, number: string, unit: string) => {
    sum += Number(number) * UNIT_MS[unit.toLowerCase()]!;
    return "";
  });
  return rest.trim() === "" && sum > 0 ? sum : null;
}

/** Time between the ends of two windows. */
export function stepMs(query: Pick<StandingQuery, "query" | "first_window">): number | null {
  const last = (word: string) => [...query.query.matchAll(new RegExp(`\\b${word}\\s+(['"])(.*?)\\1`, "gi"))].at(-1)?.[2];
  const text = last("SLIDE") ?? last("WINDOW");
  const step = text === undefined ? null : intervalMs(text);
  if (step !== null || !query.first_window) return step;
  return Date.parse(query.first_window.end) - Date.parse(query.first_window.start) || null;
}

/** End of the earliest of the latest `windows` windows; null: all. */
export function recentFrom(query: Pick<StandingQuery, "query" | "first_window" | "watermark">, windows: number): string | null {
  const step = stepMs(query);
  const at = query.watermark ? Date.parse(query.watermark) - windows * (step ?? 0) : Number.NaN;
  return step === null || !(at > 0) ? null : new Date(at).toISOString();
}

export function resultId(result: QueryResult): string {
  return `${result.window_end} ${jsonText(result.group)}`;
}

/** Newer results added to known ones, the newest window first, at most `most`. */
export function withResults(known: readonly QueryResult[], more: readonly QueryResult[], most: number): QueryResult[] {
  const byId = new Map<string, QueryResult>();
  for (const each of [...known, ...more]) byId.set(resultId(each), each);
  const texts = new Map([...byId.values()].map((each) => [each, jsonText(each.group)]));
  return [...byId.values()]
    .sort((left, right) => Date.parse(right.window_end) - Date.parse(left.window_end) || (texts.get(left)! < texts.get(right)! ? -1 : 1))
    .slice(0, most);
}
