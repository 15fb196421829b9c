/** Numbers that are computed from epochs. */
import type { Epoch } from "../api/types";

export function lengthOf(epoch: Epoch): number | null {
  const end = epoch.committed_at ?? epoch.prepared_at;
  return end ? Date.parse(end) - Date.parse(epoch.started_at) : null;
}

/** Rows per second that were read, from the first to the last of these epochs. */
export function rateOf(epochs: readonly Epoch[]): number | null {
  const done = epochs.filter((epoch) => epoch.prepared_at);
  const [newest, oldest] = [done[0], done.at(-1)];
  if (!newest?.prepared_at || !oldest) return null;
  const seconds = (Date.parse(newest.prepared_at) - Date.parse(oldest.started_at)) / 1000;
  const rows = done.reduce((sum, epoch) => sum + (epoch.rows_in ?? 0), 0);
  return seconds > 0 ? rows / seconds : null;
}

/** The list with this record added or replaced, newest first. */
export function withEpoch(epochs: readonly Epoch[], record: Epoch): Epoch[] {
  const same = (each: Epoch) => each.branch === record.branch && each.epoch === record.epoch;
  const before = epochs.find(same);
  const others = epochs.filter((each) => !same(each));
  return [{ ...before, ...record }, ...others].sort((one, other) => other.epoch - one.epoch);
}
