/** Texts of state values. Exact: a look-up with the text of a key column finds the key. */
import { jsonText } from "./exact";

/** A value as one text. Nested values are JSON. */
export function valueText(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value;
  if (Object.is(value, -0)) return "-0";
  return typeof value === "object" ? jsonText(value) : String(value);
}

/** At most `most` code units, without half of a character. Takes no time for a long text. */
export function clip(text: string, most: number): string {
  if (text.length <= most) return text;
  const end = /[\ud800-\udbff]/.test(text[most - 2]!) ? most - 2 : most - 1;
  return `${text.slice(0, end)}…`;
}

/** One line for a cell of a table: line breaks and tabs are visible. */
export function cellText(value: unknown, most = 80): string {
  if (value === "") return '""';
  return clip(typeof value === "string" ? value.slice(0, most + 1) : valueText(value), most).replace(/[\n\r\t]/g, (found) => (found === "\n" ? "↵" : found === "\t" ? "⇥" : "␍"));
}

export function isNumeric(type: string): boolean {
  return /^(tinyint|smallint|int|bigint|float|double|decimal)/.test(type);
}

export function isNested(type: string): boolean {
  return /^(array|map|struct)/i.test(type) || type === "variant";
}

/** A number for a chart; null for a value without one. */
export function chartNumber(value: unknown): number | null {
  if (value === null || value === undefined || value === "") return null;
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}

/**
 * Numbers for a chart. Values that differ only in their last digits are drawn as their exact distance from `base`, because
 * the axis of a chart has no more digits than a double.
 */
export function chartValues(values: readonly unknown[]): { values: (number | null)[]; base: string | null } {
  const numbers = values.map(chartNumber);
  const present = numbers.filter((number) => number !== null);
  const [low, high] = [Math.min(...present), Math.max(...present)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const base = values.find((value) => chartNumber(value) !== null);
  if (present.length < 2 || high - low > size * 1e-9) return { values: numbers, base: null };
  const distance = (value: unknown) => Number((difference(base, value) ?? "0").replace("−", "-"));
  const distances = values.map((value, index) => (numbers[index] === null ? null : distance(value)));
  return size < 1e9 && distances.every((each) => !each) ? { values: numbers, base: null } : { values: distances, base: valueText(base) };
}

/** The difference between two numbers, exact for integers and decimals. */
export function difference(before: unknown, after: unknown): string | null {
  if (before === null || before === undefined || after === null || after === undefined) return null;
  const [from, to] = [valueText(before), valueText(after)];
  const scale = Math.max(digits(from), digits(to));
  let text: string;
  if (scale >= 0) {
    const change = scaled(to, scale) - scaled(from, scale);
    if (change === 0n) return null;
    const size = String(change < 0n ? -change : change).padStart(scale + 1, "0");
    text = `${change < 0n ? "−" : "+"}${scale ? `${size.slice(0, -scale)}.${size.slice(-scale)}` : size}`;
  } else {
    const change = Number(to) - Number(from);
    if (!Number.isFinite(change) || change === 0) return null;
    text = `${change < 0 ? "−" : "+"}${Number(Math.abs(change).toPrecision(6))}`;
  }
  return text;
}

/** Digits after the point of a plain decimal number; NaN for another text. */
function digits(text: string): number {
  const match = /^-?\d{1,40}(?:\.(\d{1,40}))?$/.exec(text);
  return match ? (match[1]?.length ?? 0) : Number.NaN;
}

function scaled(text: string, scale: number): bigint {
  const [whole, fraction = ""] = text.split(".");
  return BigInt(`${whole}${fraction.padEnd(scale, "0")}`);
}
