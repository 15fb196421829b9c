/** The difference of two texts by lines, by the algorithm of Myers. */

export interface DiffLine {
  kind: "same" | "added" | "removed";
  text: string;
  /** Numbers of the line in the first and in the second text, from 1. */
  before: number | null;
  after: number | null;
}

/** Maximum number of differing lines that are aligned; larger differences are shown as one block. */
const MOST = 2000;

export function diffLines(before: string, after: string): DiffLine[] {
  const [one, other] = [lines(before), lines(after)];
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < one.length - start && end < other.length - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  const found: DiffLine[] = [];
  const same = (index: number, shift: number) => found.push({ kind: "same", text: one[index]!, before: index + 1, after: index + shift + 1 });
  for (let index = 0; index < start; index += 1) same(index, 0);
  for (const [kind, a, b] of script(one.slice(start, one.length - end), other.slice(start, other.length - end))) {
    if (kind === "same") same(start + a, b - a);
    else if (kind === "removed") found.push({ kind, text: one[start + a]!, before: start + a + 1, after: null });
    else found.push({ kind, text: other[start + b]!, before: null, after: start + b + 1 });
  }
  for (let index = one.length - end; index < one.length; index += 1) same(index, other.length - one.length);
  return found;
}

/** The changed lines with `context` lines around them; `null` stands for lines that are left out. */
export function hunks(all: readonly DiffLine[], context: number): (DiffLine | null)[] {
  const near = new Set<number>();
  all.forEach((line, index) => {
    if (line.kind === "same") return;
    for (let each = index - context; each <= index + context; each += 1) near.add(each);
  });
  const found: (DiffLine | null)[] = [];
  all.forEach((line, index) => {
    if (near.has(index)) found.push(line);
    else if (found.at(-1) !== null) found.push(null);
  });
  return found;
}

function lines(text: string): string[] {
  if (text === "") return [];
  return text.replace(/\r\n/g, "\n").replace(/\n$/, "").split("\n");
}

type Step = [kind: DiffLine["kind"], before: number, after: number];

function script(one: readonly string[], other: readonly string[]): Step[] {
  const [n, m] = [one.length, other.length];
  const whole = (): Step[] => [...one.map((_, index): Step => ["removed", index, 0]), ...other.map((_, index): Step => ["added", n, index])];
  if (n === 0 || m === 0) return whole();
  // trace[d] has, for each diagonal, how far d edits reach.
  const trace: Map<number, number>[] = [];
  let reach = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= Math.min(n + m, MOST); d += 1) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? (reach.get(k + 1) ?? 0) : (reach.get(k - 1) ?? 0) + 1;
      while (x < n && x - k < m && one[x] === other[x - k]) x += 1;
      reach.set(k, x);
      if (x >= n && x - k >= m) return walked(trace, n, m);
    }
  }
  return whole();
}

function walked(trace: readonly Map<number, number>[], n: number, m: number): Step[] {
  const steps: Step[] = [];
  let [x, y] = [n, m];
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const reach = trace[d]!;
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const before = down ? k + 1 : k - 1;
    const startX = d === 0 ? 0 : (reach.get(before) ?? 0);
    const startY = startX - before;
    const stopX = d === 0 ? 0 : down ? startX : startX + 1;
    while (x > stopX) {
      x -= 1;
      y -= 1;
      steps.push(["same", x, y]);
    }
    if (d === 0) break;
    if (down) steps.push(["added", x, (y -= 1)]);
    else steps.push(["removed", (x -= 1), y]);
    [x, y] = [startX, startY];
  }
  return steps.reverse();
}
