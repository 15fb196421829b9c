/** The drawing of a tree of snapshots, as git draws it: a row for each snapshot, newest first, and a lane for each branch. */

export interface Parented {
  key: string;
  parents: readonly string[];
}

export interface LaneRow {
  lane: number;
  /** Lanes that pass this row without touching it. */
  passing: number[];
  /** Lanes from above that end in this row's node: its descendants. */
  joining: number[];
  /** Whether the line continues below. */
  continues: boolean;
}

/** Rows in the order of `nodes`, in which children stand before their parents. */
export function lanesOf(nodes: readonly Parented[]): LaneRow[] {
  const expected: (string | null)[] = [];
  const free = () => {
    const index = expected.indexOf(null);
    if (index >= 0) return index;
    expected.push(null);
    return expected.length - 1;
  };
  return nodes.map(({ key, parents }) => {
    const joining = expected.flatMap((each, lane) => (each === key ? [lane] : []));
    const lane = joining[0] ?? free();
    for (const each of joining) expected[each] = null;
    const passing = expected.flatMap((each, index) => (each !== null && index !== lane ? [index] : []));
    const [parent] = parents;
    expected[lane] = parent ?? null;
    return { lane, passing, joining, continues: parent !== undefined };
  });
}

export function widthOf(rows: readonly LaneRow[]): number {
  return rows.reduce((most, row) => Math.max(most, row.lane + 1, ...row.passing.map((lane) => lane + 1)), 1);
}
