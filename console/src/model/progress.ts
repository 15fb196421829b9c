/** Amounts in the progress of operations. */
import { bytes } from "./format";

/** `1024 of 4096 bytes` as numbers and a text; `null` for progress without a total. */
export function amountOf(progress: string | null): { done: number; all: number; text: string } | null {
  const found = /^(\d+) of (\d+) (\w+)(.*)$/.exec(progress ?? "");
  if (!found) return null;
  const [done, all] = [Number(found[1]), Number(found[2])];
  if (all === 0) return null;
  const percent = `${Math.floor((100 * done) / all)} %`;
  return { done, all, text: found[3] === "bytes" ? `${percent}, ${bytes(done)} of ${bytes(all)}` : `${percent}, ${progress}` };
}
