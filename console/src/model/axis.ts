/** Scales and ticks of charts. */

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200];
const DAY_S = 86_400;

/** The least of 1, 2 and 5 times a power of ten that is at least `size`. */
function rounded(size: number): number {
  const power = 10 ** Math.floor(Math.log10(size));
  return ([1, 2, 5].find((each) => each * power >= size) ?? 10) * power;
}

/** Round numbers from `low` to `high`, at most `most` of them and one more. */
export function ticks(low: number, high: number, most: number): number[] {
  const step = rounded((high - low) / Math.max(most, 1));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

export interface TimeTicks {
  /** Seconds since 1970. */
  at: number[];
  /** Seconds between two of them. */
  step: number;
}

/** Round local times from `low` to `high` in seconds since 1970. `offset`: seconds of local time after UTC. */
export function timeTicks(low: number, high: number, most: number, offset: number): TimeTicks {
  const size = (high - low) / Math.max(most, 1);
  const step = STEPS_S.find((each) => each >= size) ?? Math.ceil(rounded(Math.max(size / DAY_S, 1))) * DAY_S;
  const first = Math.ceil((low + offset) / step);
  const last = Math.floor((high + offset) / step);
  return { at: Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => (first + index) * step - offset), step };
}

/** What the vertical axis shows of values between `low` and `high`. It begins at 0 if the values are not far from it. */
export function rangeOf(values: readonly (number | null)[]): [number, number] {
  const known = values.filter((each): each is number => each !== null && Number.isFinite(each));
  if (known.length === 0) return [0, 1];
  const low = known.reduce((one, other) => Math.min(one, other));
  const high = known.reduce((one, other) => Math.max(one, other));
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  return [low > 0 && low < high / 3 ? 0 : low, high];
}

/** The index of the value of `sorted` that is nearest to `wanted`; -1 if there is none. */
export function nearest(sorted: readonly number[], wanted: number): number {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < wanted) low = middle + 1;
    else high = middle;
  }
  const before = low > 0 && wanted - sorted[low - 1]! < sorted[low]! - wanted;
  return sorted.length === 0 ? -1 : before ? low - 1 : low;
}
