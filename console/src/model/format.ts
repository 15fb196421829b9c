/** Texts of numbers, times and values. No number without its unit. */
import type { Json } from "../api/types";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });

/** `count(1, "row")` is `1 row`, `count(2300, "row")` is `2,300 rows`. */
export function count(number: number, noun: string): string {
  return `${WHOLE.format(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function short(number: number): string {
  return number < 10_000 ? WHOLE.format(number) : SHORT.format(number);
}

export function rate(perSecond: number): string {
  const digits = perSecond > 0 && perSecond < 10 ? 1 : 0;
  return `${perSecond < 10_000 ? perSecond.toFixed(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",") : SHORT.format(perSecond)} rows/s`;
}

export function bytes(number: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = number;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? size.toFixed(0) : size.toFixed(1)} ${units[unit]}`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 120) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  return hours < 48 ? `${Math.round(hours)} h` : `${Math.round(hours / 24)} d`;
}

/** `12 s ago`. A clock of the server that is ahead is shown as now. */
export function age(at: string, now: number): string {
  const ms = now - Date.parse(at);
  if (ms < 1000) return "now";
  return ms < 120_000 ? `${Math.floor(ms / 1000)} s ago` : `${duration(ms)} ago`;
}

export function clock(at: string): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

export function moment(at: string): string {
  const date = new Date(at);
  return `${date.toLocaleDateString("en-CA")} ${date.toLocaleTimeString("en-GB")}`;
}

/** A value of a state column as one line of text. */
export function shown(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value === "" ? '""' : value;
  if (typeof value === "number") {
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(8)));
  }
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function clipped(text: string, most: number): string {
  const points = [...text];
  return points.length <= most ? text : `${points.slice(0, most - 1).join("")}…`;
}

export function plain(value: Json | undefined): string {
  return value === undefined ? "not set" : JSON.stringify(value);
}
