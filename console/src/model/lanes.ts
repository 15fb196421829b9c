/** The drawing of a tree of snapshots, as git draws it: a row for each snapshot, newest first, and a lane for each branch. */

export interface Parented {
  key: string;
  parents: readonly string[];
  /** A parent continues in the lane of the child of its own branch. */
  branch?: string;
}

export interface LaneRow {
  lane: number;
  /** Lanes that pass this row without touching it. */
  passing: number[];
  /** Lanes from above that end in this row's node: its descendants. */
  joining: number[];
  /** Whether the line continues below. */
  continues: boolean;
  /** For each lane that enters the row from above, the key of the snapshot that its line comes from. */
  from: (string | undefined)[];
}

interface Line {
  to: string;
  from: string;
  branch: string | undefined;
}

/** Rows in the order of `nodes`, in which children stand before their parents. The line of `trunk` is the leftmost. */
export function lanesOf(nodes: readonly Parented[], trunk?: string): LaneRow[] {
  const lines: (Line | null)[] = [];
  let reserved = trunk !== undefined && nodes.some((node) => node.key === trunk);
  const free = () => {
    for (let lane = reserved ? 1 : 0; lane < lines.length; lane += 1) if (lines[lane] === null) return lane;
    while (reserved && lines.length === 0) lines.push(null);
    lines.push(null);
    return lines.length - 1;
  };
  return nodes.map(({ key, parents, branch }) => {
    const joining = lines.flatMap((line, lane) => (line?.to === key ? [lane] : []));
    const own = joining.find((lane) => branch !== undefined && lines[lane]!.branch === branch);
    let lane: number;
    if (reserved && key === trunk) {
      reserved = false;
      lane = 0;
      if (lines.length === 0) lines.push(null);
    } else lane = joining[0] === 0 && trunk !== undefined && !reserved ? 0 : (own ?? joining[0] ?? free());
    const from = lines.map((line) => line?.from);
    for (const each of joining) lines[each] = null;
    const passing = lines.flatMap((line, index) => (line !== null && index !== lane ? [index] : []));
    const [parent] = parents;
    lines[lane] = parent === undefined ? null : { to: parent, from: key, branch };
    return { lane, passing, joining, continues: parent !== undefined, from };
  });
}

export function widthOf(rows: readonly LaneRow[]): number {
  return rows.reduce((most, row) => Math.max(most, row.lane + 1, ...row.passing.map((lane) => lane + 1)), 1);
}
