/** Skew of key groups: bars of a strip, and the ratio of the greatest to the median. */

export interface Bar {
  /** First and last key group. */
  first: number;
  last: number;
  rows: number;
  bytes: number;
}

export interface Skew {
  greatest: number;
  median: number;
  /** The key group with the most. */
  group: number;
  /** Greatest by median; null if the median is 0. */
  ratio: number | null;
  empty: number;
}

/** At most `most` bars. With more key groups, each bar is the greatest of neighbouring ones, so that none is hidden. */
export function barsOf(rows: readonly number[], bytes: readonly number[], by: "rows" | "bytes", most: number): Bar[] {
  const width = Math.max(1, Math.ceil(rows.length / most));
  const measure = by === "rows" ? rows : bytes;
  const bars: Bar[] = [];
  for (let first = 0; first < rows.length; first += width) {
    const last = Math.min(rows.length, first + width) - 1;
    let greatest = first;
    for (let group = first + 1; group <= last; group += 1) if (measure[group]! > measure[greatest]!) greatest = group;
    bars.push({ first, last, rows: rows[greatest]!, bytes: bytes[greatest]! });
  }
  return bars;
}

export function skewOf(values: readonly number[]): Skew {
  const sorted = [...values].sort((left, right) => left - right);
  const middle = sorted.length >> 1;
  const median = sorted.length === 0 ? 0 : sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
  const greatest = sorted[sorted.length - 1] ?? 0;
  return { greatest, median, group: values.indexOf(greatest), ratio: median > 0 ? greatest / median : null, empty: sorted.filter((value) => value === 0).length };
}

/** Colour step of a bar, from 0 (nothing) to 5 (the greatest). */
export function step(value: number, greatest: number): number {
  return value === 0 || greatest === 0 ? 0 : Math.max(1, Math.ceil((value / greatest) * 5));
}
