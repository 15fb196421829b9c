/** Keys as the API writes them: values in order, separated by commas, each percent-encoded; null is `%00`. */

export function keyText(values: readonly unknown[]): string {
  return values.map((value) => (value === null ? "%00" : encodeURIComponent(String(value)))).join(",");
}

export function keyValues(text: string): (string | null)[] {
  return text.split(",").map((part) => (part === "%00" ? null : decoded(part)));
}

/** The prefix of a scan: leading values, of which the last one, a text, may be incomplete. */
export function prefixText(values: readonly string[], types: readonly string[]): string {
  const given = values.findIndex((value) => value === "");
  const leading = given < 0 ? values : values.slice(0, given);
  return leading
    .map((value, index) => {
      const last = index === leading.length - 1;
      return encodeURIComponent(value) + (last && types[index] === "string" ? "*" : "");
    })
    .join(",");
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
