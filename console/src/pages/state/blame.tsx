/** What last changed a key: the epoch, its input, the code, and the person who deployed it. */
import type { ComponentChildren } from "preact";
import { get, resource } from "../../api/client";
import { project } from "../../api/session";
import type { Blame, Page, StateTable, Version } from "../../api/types";
import { count, plain } from "../../model/format";
import { clip } from "../../model/values";
import { jsonText } from "../../model/exact";
import { link } from "../../router";
import { useData } from "../../ui/data";
import { Age, Facts } from "../../ui/parts";

const MOST_PAGES = 10;

export function BlameView({ blame, table }: { blame: Blame; table: StateTable }) {
  const { change } = blame;
  const path = resource(project.value, "applications", change.application, "versions");
  const version = useData(`version ${path} ${blame.version}`, (signal) => versionOf(path, blame.version, signal));
  const overview = link("applications", change.application);
  const facts: [string, ComponentChildren][] = [
    [
      "Epoch",
      <>
        <a href={`${overview}?epoch=${change.epoch}`}>epoch {change.epoch}</a> of <bdi>{change.application}</bdi>, <Age at={change.at} />
      </>,
    ],
    ...Object.entries(blame.slices).map(([source, slice]): [string, ComponentChildren] => [
      "Input",
      <>
        <a href={`${overview}?node=${encodeURIComponent(source)}`}>
          <bdi>{source}</bdi>
        </a>
        {slice.rows !== null && `, ${count(slice.rows, "row")}`}
        <details>
          <summary>
            <bdi>{clip(`${plain(slice.start as never)} to ${plain(slice.end as never)}`, 120)}</bdi>
          </summary>
          <pre tabIndex={0}>{clip(jsonText(slice.detail, "\n"), 20_000)}</pre>
        </details>
      </>,
    ]),
    [
      "Code",
      <>
        <a href={`${overview}?node=${encodeURIComponent(table.operator)}`}>
          <code>{table.operator}</code>
        </a>{" "}
        in <code>{blame.filename ?? "an unnamed file"}</code>
        {blame.version !== null && `, version ${blame.version}`}, SHA-256 <code title={blame.artifact}>{blame.artifact.slice(0, 12)}</code>
      </>,
    ],
    [
      "Person",
      version.value ? (
        <>
          <a href={`${link("applications", change.application, "lineage")}?find=${encodeURIComponent(version.value.created_by)}`}>
            <bdi>{clip(version.value.created_by, 200)}</bdi>
          </a>{" "}
          deployed version {version.value.number}, <Age at={version.value.created_at} />
          {version.value.message && (
            <>
              : <bdi>{clip(version.value.message, 300)}</bdi>
            </>
          )}
        </>
      ) : version.value === null || version.problem ? (
        "not recorded"
      ) : (
        "Reading"
      ),
    ],
  ];
  if (blame.changes.length > 0) facts.push(["Changes", blame.changes.map((each) => each.kind).join(", ")]);
  return (
    <section class="blame" aria-labelledby="blame-title">
      <h3 id="blame-title">Last change</h3>
      <Facts items={facts} />
    </section>
  );
}

async function versionOf(path: string, number: number | null, signal: AbortSignal): Promise<Version | null> {
  let cursor: string | null = null;
  for (let page = 0; number !== null && page < MOST_PAGES; page += 1) {
    const answer: Page<Version> = await get<Page<Version>>(path, { limit: page === 0 ? 10 : 100, cursor }, signal);
    const found = answer.items.find((each) => each.number === number);
    if (found) return found;
    cursor = answer.next_cursor;
    if (cursor === null) break;
  }
  return null;
}
