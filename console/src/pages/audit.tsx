/** The audit log: who did what, filtered by person, action, application and time. For administrators of the project. */
import { useRef, useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { may, project } from "../api/session";
import type { AuditEntry, Page } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count, moment, plain } from "../model/format";
import { address, choose, link } from "../router";
import { useData } from "../ui/data";
import { CopyAs, Facts, Field, Loading, Problem } from "../ui/parts";

const PAGE = 50;
const FILTERS = ["token", "action", "application", "since", "until"] as const;
type Filters = Partial<Record<(typeof FILTERS)[number], string>>;

export default function Audit() {
  if (!may("admin")) return <p class="empty">The audit log requires the role admin in this project.</p>;
  const filters: Filters = {};
  for (const name of FILTERS) {
    const value = address.value.query.get(name);
    if (value) filters[name] = value;
  }
  const path = resource(project.value, "audit");
  return <Entries key={`${path} ${JSON.stringify(filters)}`} path={path} filters={filters} />;
}

function Entries({ path, filters }: { path: string; filters: Filters }) {
  const known = useRef(new Map<number, AuditEntry>());
  const cursor = useRef<string | null | undefined>(undefined);
  const [more, setMore] = useState({ count: 0, busy: false, failed: null as string | null });
  const data = useData(
    `audit ${path} ${JSON.stringify(filters)}`,
    async (signal) => {
      const page = await get<Page<AuditEntry>>(path, { ...filters, limit: PAGE }, signal);
      for (const each of page.items) known.current.set(each.id, each);
      cursor.current ??= page.next_cursor;
      return page;
    },
    (event) => event.kind === "operation" || event.kind === "execution" || event.kind === "savepoint",
  );
  const older = async () => {
    setMore({ ...more, busy: true, failed: null });
    try {
      const page = await get<Page<AuditEntry>>(path, { ...filters, limit: PAGE, cursor: cursor.current });
      for (const each of page.items) known.current.set(each.id, each);
      cursor.current = page.next_cursor;
      setMore({ count: more.count + 1, busy: false, failed: null });
    } catch (error) {
      setMore({ ...more, busy: false, failed: error instanceof Error ? error.message : String(error) });
    }
  };
  const items = [...known.current.values()].sort((a, b) => b.id - a.id);
  return (
    <>
      <header class="title">
        <h1>Audit log</h1>
        <span class="push" />
        <button type="button" onClick={data.reload}>
          Read again
        </button>
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "audit", ...options(filters)),
            curl: curl(path, filters),
            python: `${filters.since || filters.until ? "from datetime import datetime\n" : ""}${python(project.value, `client.audit.list(${keywords(filters)})`)}`,
          })}
        />
      </header>
      <Filter filters={filters} items={items} />
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="the audit log" />}
      <section class="card" aria-label="Calls, newest first">
        {data.value && items.length === 0 && <p class="empty">No call matches.</p>}
        {items.map((each) => (
          <Entry key={each.id} entry={each} />
        ))}
        {more.failed && <p class="notice bad" role="alert">{more.failed}</p>}
        {cursor.current && (
          <p class="more">
            <button type="button" disabled={more.busy} onClick={() => void older()}>
              {more.busy ? "Reading" : "Older calls"}
            </button>
          </p>
        )}
      </section>
    </>
  );
}

/** Times of the address are those of the API, in UTC; the fields have local times. */
function local(time: string | undefined): string {
  const at = time ? new Date(time) : null;
  if (!at || Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function Filter({ filters, items }: { filters: Filters; items: readonly AuditEntry[] }) {
  for (const each of items) {
    if (each.token) PEOPLE.add(each.token);
    ACTIONS.add(each.action);
  }
  const set = (name: string, value: string) => choose({ [name]: value || null });
  const time = (name: "since" | "until", label: string) => (
    <Field label={label}>
      <input
        type="datetime-local"
        value={local(filters[name])}
        onChange={(event) => set(name, event.currentTarget.value && new Date(event.currentTarget.value).toISOString())}
      />
    </Field>
  );
  return (
    <form class="filters" role="search" aria-label="Filter the calls" onSubmit={(event) => event.preventDefault()}>
      <Field label="Person or token">
        <input data-search list="audit-people" value={filters.token ?? ""} onChange={(event) => set("token", event.currentTarget.value.trim())} />
      </Field>
      <Field label="Action">
        <input list="audit-actions" placeholder="POST /v1/tokens" value={filters.action ?? ""} onChange={(event) => set("action", event.currentTarget.value.trim())} />
      </Field>
      <Field label="Application">
        <input value={filters.application ?? ""} onChange={(event) => set("application", event.currentTarget.value.trim())} />
      </Field>
      {time("since", "From")}
      {time("until", "Until")}
      {Object.keys(filters).length > 0 && (
        <button type="button" onClick={() => choose(Object.fromEntries(FILTERS.map((name) => [name, null])))}>
          Clear
        </button>
      )}
      <Suggestions id="audit-people" names={PEOPLE} />
      <Suggestions id="audit-actions" names={ACTIONS} />
    </form>
  );
}

/** Suggestions: what earlier lists had, because a filtered one has few values. */
const PEOPLE = new Set<string>();
const ACTIONS = new Set<string>();

function Suggestions({ id, names }: { id: string; names: ReadonlySet<string> }) {
  return (
    <datalist id={id}>
      {[...names].sort().map((name) => (
        <option key={name} value={name} />
      ))}
    </datalist>
  );
}

function Entry({ entry }: { entry: AuditEntry }) {
  const [method] = entry.action.split(" ", 1);
  const refused = entry.outcome >= 400;
  const who = entry.token ?? "unauthenticated";
  return (
    <details class="opening">
      <summary class="auditrow">
        <time dateTime={entry.at}>{moment(entry.at)}</time>
        <b>
          <bdi>{who}</bdi>
        </b>
        <span class="what">
          <code>{method}</code> <bdi>{entry.target}</bdi>
        </span>
        <span class={refused ? "badtext" : "quiet"}>{outcome(entry.outcome)}</span>
      </summary>
      <Facts
        items={[
          ["Caller", <Only key="token" name="token" value={entry.token} text={`${who}${entry.address ? ` from ${entry.address}` : ""}`} />],
          ["Action", <Only key="action" name="action" value={entry.action} text={entry.action} />],
          ...(entry.application
            ? ([["Application", <span key="application"><a href={link("applications", entry.application)}>{entry.application}</a> <Only name="application" value={entry.application} text="" /></span>]] as [string, preact.ComponentChildren][])
            : []),
          ["Request", <code key="request">{entry.request}</code>],
        ]}
      />
      {entry.changes.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label={`Changes of call ${entry.id}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">Changed</th>
                <th scope="col">Before</th>
                <th scope="col">After</th>
              </tr>
            </thead>
            <tbody>
              {entry.changes.map((change) => (
                <tr key={`${change.subject} ${change.field}`}>
                  <td>
                    <b>{clipped(change.subject, 200)}</b> {change.field}
                  </td>
                  <td>{value(change.before)}</td>
                  <td>{value(change.after)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {entry.changes_left_out > 0 && <p class="quiet">{count(entry.changes_left_out, "further change")}.</p>}
      {entry.changes.length === 0 && <p class="quiet">{refused ? "The call was refused and changed nothing." : "The call changed no recorded field."}</p>}
    </details>
  );
}

function outcome(status: number): string {
  return status >= 500 ? `failed, ${status}` : status >= 400 ? `refused, ${status}` : `done, ${status}`;
}

function value(given: unknown) {
  if (given === null || given === undefined) return <span class="quiet">none</span>;
  return <bdi>{typeof given === "string" ? given : plain(given as never)}</bdi>;
}

/** A value with a button that lists only calls with it. */
function Only({ name, value, text }: { name: string; value: string | null; text: string }) {
  return (
    <>
      <bdi>{text}</bdi>{" "}
      {value !== null && (
        <button type="button" class="inline" onClick={() => choose({ [name]: value })}>
          only these<span class="hidden"> of {value}</span>
        </button>
      )}
    </>
  );
}

function options(filters: Filters): string[] {
  return FILTERS.flatMap((name) => (filters[name] ? [name === "application" ? "--app" : `--${name}`, filters[name]!] : []));
}

function keywords(filters: Filters): string {
  const given = FILTERS.filter((name) => filters[name]);
  return given.map((name) => `${name}=${name === "since" || name === "until" ? `datetime.fromisoformat(${literal(filters[name])})` : literal(filters[name])}`).join(", ");
}
