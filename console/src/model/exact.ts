/** JSON of the API without loss: integers beyond 2^53 become `bigint`. */

const LONG = /\d{16}/;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

export function parseExact(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  // No text of the answer can contain the mark, since it is chosen after the answer has arrived.
  const mark = `${Math.random()} ${Math.random()} `;
  let found = false;
  const marked = text.replace(TOKEN, (token) => {
    if (token.length < 16 || token.startsWith('"') || /[.eE]/.test(token) || Number.isSafeInteger(Number(token))) return token;
    found = true;
    return `"${mark}${token}"`;
  });
  if (!found) return JSON.parse(text);
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

/** `JSON.stringify` for values that may contain `bigint`. */
export function jsonText(value: unknown, indent = ""): string {
  if (typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = indent && `${indent}  `;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((each) => jsonText(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}:${indent ? " " : ""}${jsonText(each, inner)}`);
  if (parts.length === 0) return `${open}${close}`;
  return indent ? `${open}${inner}${parts.join(`,${inner}`)}${indent}${close}` : `${open}${parts.join(",")}${close}`;
}
