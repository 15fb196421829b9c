/** Results of a standing query, the newest window first. After an epoch, only those of later windows are read. */
import { useRef, useState } from "preact/hooks";
import type { QueryResult, QueryResults, StandingQuery } from "../api/types";
import { withQuery } from "../api/client";
import { count, moment } from "../model/format";
import { recentFrom, resultId, withResults } from "../model/queries";
import { useData } from "../ui/data";
import { Age, Loading, Problem } from "../ui/parts";
import { isCommitOf, read, useKept, type Answer } from "./state/reading";
import { Cell } from "./state/rows";

const WINDOWS = 20;
const MOST = 1000;
const PAGE = 500;
const MOST_PAGES = 6;

interface Found {
  results: QueryResult[];
  epoch: number;
  /** More results exist after those that were read. */
  cut: boolean;
}

export function Results({ name, query, path }: { name: string; query: StandingQuery; path: string }) {
  const [windows, setWindows] = useState(WINDOWS);
  const known = useRef<{ windows: number; found: Found } | null>(null);
  const from = recentFrom(query, windows);
  const data = useData(
    `results ${path} ${windows}`,
    async (signal) => {
      const before = known.current?.windows === windows ? known.current.found : null;
      const start = before?.results[0]?.window_end ?? from;
      let results = before?.results ?? [];
      let cursor: string | null = null;
      let epoch = before?.epoch ?? 0;
      for (let page = 0; page < MOST_PAGES; page += 1) {
        const { value }: Answer<QueryResults> = await read<QueryResults>(withQuery(path, { limit: PAGE, min_window_end: start, cursor }), signal);
        results = withResults(results, value.items, MOST);
        [cursor, epoch] = [value.next_cursor, value.epoch];
        if (cursor === null) break;
      }
      known.current = { windows, found: { results, epoch, cut: cursor !== null } };
      return known.current.found;
    },
    isCommitOf(name),
  );
  const found = useKept(data).value;
  const results = found?.results ?? [];
  const groups = namesOf(results.map((each) => each.group));
  const values = namesOf(results.map((each) => each.values ?? {}));
  const failing = results.some((each) => each.error);
  return (
    <section aria-labelledby="results-title">
      <div class="title">
        <h3 id="results-title">
          Results{" "}
          <small>
            {found && `${count(results.length, "result")}, newest window first, as of epoch ${found.epoch}`}
          </small>
        </h3>
        <span class="push" />
        {from !== null && (
          <button type="button" onClick={() => setWindows(windows * 4)}>
            Older windows
          </button>
        )}
      </div>
      <Problem problem={data.problem?.status === 404 ? null : data.problem} retry={data.reload} />
      {!found && !data.problem && <Loading what="results" />}
      {found && results.length === 0 && <p class="empty">{from === null ? "No window has closed yet." : `No result in the last ${windows} windows. Windows without rows have none.`}</p>}
      {results.length > 0 && (
        <div class="scroll tall" tabIndex={0} role="group" aria-label={`Results of query ${query.id}`}>
          <table class="flat">
            <caption class="hidden">Results, newest window first</caption>
            <thead>
              <tr>
                <th scope="col">Window</th>
                {groups.map((each) => (
                  <th key={`group ${each}`} scope="col" class="key">
                    <bdi>{each}</bdi>
                  </th>
                ))}
                {values.map((each) => (
                  <th key={`value ${each}`} scope="col" class="number">
                    <bdi>{each}</bdi>
                  </th>
                ))}
                {failing && <th scope="col">Error</th>}
                <th scope="col">Answered</th>
              </tr>
            </thead>
            <tbody>
              {results.map((each) => (
                <tr key={resultId(each)}>
                  <td title={`${each.window_start} to ${each.window_end}`}>
                    {moment(each.window_start)} to {moment(each.window_end).split(" ")[1]}
                  </td>
                  {groups.map((name) => (
                    <td key={`group ${name}`} class="key">
                      <Cell value={each.group[name]} />
                    </td>
                  ))}
                  {values.map((name) => (
                    <td key={`value ${name}`} class="number">
                      {each.values === null ? "" : <Cell value={each.values[name]} />}
                    </td>
                  ))}
                  {failing && (
                    <td class="badtext" title={each.error ?? ""}>
                      {each.error ?? ""}
                    </td>
                  )}
                  <td>
                    <Age at={each.answered_at} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found?.cut && <p class="quiet caption">Later results exist. Fewer windows show the newest ones.</p>}
    </section>
  );
}

function namesOf(objects: Record<string, unknown>[]): string[] {
  return [...new Set(objects.flatMap(Object.keys))].slice(0, 40);
}
