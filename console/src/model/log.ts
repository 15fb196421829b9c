/** Lines of a driver's log: their level, and which of them a filter shows. */

export type Level = "error" | "warning" | "info" | "debug" | "output";
export interface LogLine {
  /** Number within the page, which increases. */
  number: number;
  text: string;
  level: Level;
  /** Whether the line begins a record. Others belong to the record before. */
  begins: boolean;
}

const LEVELS: Record<string, Level> = {
  CRITICAL: "error", FATAL: "error", ERROR: "error", WARNING: "warning", WARN: "warning", INFO: "info", DEBUG: "debug", TRACE: "debug",
};
/** Records of the driver, and of Spark's JVM. */
const RECORD = /^(?:\d{4}-\d\d-\d\d|\d\d\/\d\d\/\d\d) \d\d:\d\d:\d\d(?:[.,]\d+)? ([A-Z]+) /;
const JSON_RECORD = /^\{"time":"[^"]*","level":"([a-z]+)"/;
const CONTINUED = /^(?:\s|Caused by:|Traceback \(|\S*(?:Error|Exception)(?::|$))/;

/** Splits text into lines as it arrives. `push` returns the complete lines. */
export class LogReader {
  private rest = "";
  private number = 0;
  private level: Level = "output";

  push(text: string): LogLine[] {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() ?? "";
    return parts.map((line) => this.line(line.endsWith("\r") ? line.slice(0, -1) : line));
  }

  /** The last line, if it has no end. */
  end(): LogLine[] {
    return this.rest === "" ? [] : this.push("\n");
  }

  private line(text: string): LogLine {
    const found = RECORD.exec(text)?.[1] ?? JSON_RECORD.exec(text)?.[1]?.toUpperCase();
    const begins = found !== undefined || !CONTINUED.test(text);
    if (begins) this.level = (found !== undefined && LEVELS[found]) || "output";
    this.number += 1;
    return { number: this.number, text, level: this.level, begins };
  }
}

export type LeastLevel = "" | "info" | "warning" | "error";
const ORDER: Level[] = ["debug", "output", "info", "warning", "error"];

export interface LogFilter {
  level: LeastLevel;
  text: string;
  epoch: string;
}

/** The lines of those records that match. A record matches if one of its lines does, and is shown completely. */
export function filtered(lines: readonly LogLine[], filter: LogFilter): readonly LogLine[] {
  const text = filter.text.toLowerCase();
  const epoch = filter.epoch === "" ? null : new RegExp(`(?:epoch[ "':]+(?:[\\w-]+/)?|/)0*${filter.epoch.replace(/\D/g, "")}(?!\\d)`);
  if (filter.level === "" && text === "" && epoch === null) return lines;
  const least = filter.level === "" ? 0 : ORDER.indexOf(filter.level);
  const found: LogLine[] = [];
  for (let from = 0; from < lines.length; ) {
    let to = from + 1;
    while (to < lines.length && !lines[to]!.begins) to += 1;
    if (ORDER.indexOf(lines[from]!.level) >= least) {
      const record = lines.slice(from, to);
      const matches = (text === "" || record.some((line) => line.text.toLowerCase().includes(text))) && (epoch === null || record.some((line) => epoch.test(line.text)));
      if (matches) found.push(...record);
    }
    from = to;
  }
  return found;
}
