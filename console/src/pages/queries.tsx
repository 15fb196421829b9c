/** Standing queries of an application, with their results as windows close. */
import { useState } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { may, project, who } from "../api/session";
import type { GraphNode, Operation, Page, StandingQueries, StandingQuery, Version } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { count, moment } from "../model/format";
import { clip } from "../model/values";
import { address, choose } from "../router";
import { useData } from "../ui/data";
import { CopyAs, Dialog, Facts, Field, Loading, Problem, say, State } from "../ui/parts";
import type { View } from "./application";
import { Results } from "./query_results";
import { isCommitOf } from "./state/reading";

const WAIT_MS = 700;
const MOST_WAIT_MS = 120_000;

export default function QueriesPage({ application }: View) {
  const name = application.name;
  const path = resource(project.value, "applications", name, "queries");
  const data = useData(`queries ${path}`, (signal) => get<StandingQueries>(path, {}, signal), isCommitOf(name));
  const version = useData(`operators ${path} ${application.version}`, async (signal) => {
    const versions = await get<Page<Version>>(resource(project.value, "applications", name, "versions"), { limit: 1 }, signal);
    return versions.items[0]?.graph?.nodes ?? [];
  });
  const nodes = version.value ?? [];
  const operators = nodes.filter((node) => node.type === "standing_queries");
  const items = data.value?.items ?? [];
  const asked = address.value.query.get("query");
  const query = items.find((each) => String(each.id) === asked) ?? (asked === null ? items[0] : undefined);
  const [adding, setAdding] = useState(false);
  const [waiting, setWaiting] = useState<string | null>(null);
  const [failed, setFailed] = useState<string | null>(null);
  const carryOut = async (operation: Operation, done: string) => {
    setWaiting(operation.progress ?? "Waiting for an epoch");
    setFailed(null);
    try {
      const result = await finished(operation.id);
      say(done);
      if (typeof result?.query === "number" && done.includes("added")) choose({ query: String(result.query) });
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    } finally {
      setWaiting(null);
      data.reload();
    }
  };
  return (
    <>
      <section class="card" aria-labelledby="queries-title">
        <header class="title">
          <h2 id="queries-title">
            Standing queries{" "}
            {data.value && (
              <small>
                {items.length === 1 ? "1 query" : `${items.length} queries`}
                {data.value.epoch !== null && `, as of epoch ${data.value.epoch}`}
              </small>
            )}
          </h2>
          <span class="push" />
          {may("author") && operators.length > 0 && (
            <button type="button" class="primary" disabled={application.state !== "running"} onClick={() => setAdding(true)}>
              Add a query
            </button>
          )}
          <CopyAs
            commands={() => ({
              cli: epochal(project.value, "query", "list", name),
              curl: curl(path),
              python: python(project.value, `client.application(${literal(name)}).queries.list()`),
            })}
          />
        </header>
        <Problem problem={data.problem} retry={data.reload} />
        {waiting && (
          <p class="loading" role="status">
            {waiting}
          </p>
        )}
        {failed && (
          <div class="notice bad" role="alert">
            <p>{failed}</p>
          </div>
        )}
        {!data.value && !data.problem && <Loading what="queries" />}
        {data.value && items.length === 0 && (
          <p class="empty">
            {version.value && operators.length === 0
              ? "The application has no operator for standing queries: its pipeline declares one with stream.standing_queries(..)."
              : "No standing queries. A query is added to the running application, without a new version or a restart."}
          </p>
        )}
        {asked !== null && data.value && !query && <p class="empty">Query {asked} has ended, or its first epoch has not committed yet.</p>}
        {items.length > 0 && (
          <ul class="lines queries">
            {items.map((each) => (
              <li key={each.id} class={each === query ? "selected" : ""}>
                <a
                  href={`?query=${each.id}`}
                  aria-current={each === query ? "true" : undefined}
                  onClick={(event) => {
                    event.preventDefault();
                    choose({ query: String(each.id) });
                  }}
                >
                  Query {each.id}
                </a>
                <State name={each.state} />
                <code class="grow">
                  <bdi>{clip(each.query, 300)}</bdi>
                </code>
                <small>
                  <bdi>{each.owner}</bdi>
                </small>
              </li>
            ))}
          </ul>
        )}
      </section>
      {query && <Query key={query.id} name={name} query={query} path={`${path}/${query.id}`} running={application.state === "running"} carryOut={carryOut} />}
      {adding && <AddDialog path={path} name={name} nodes={nodes} operators={operators} close={() => setAdding(false)} added={(operation) => void carryOut(operation, "The query was added.")} />}
    </>
  );
}

/** The result of an operation. Raises an error with its reason if it fails. */
async function finished(id: string): Promise<Record<string, unknown> | null> {
  const end = Date.now() + MOST_WAIT_MS;
  for (;;) {
    const operation = await get<Operation>(resource(project.value, "operations", id));
    if (operation.state === "failed") throw new Error(operation.error?.detail ?? "The operation failed.");
    if (operation.state === "succeeded") return (operation.result ?? null) as Record<string, unknown> | null;
    if (Date.now() > end) throw new Error(`Operation ${id} has not finished yet. The page shows its effect when it has.`);
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
}

type Change = "pause" | "resume" | "drop";
const DONE: Record<Change, string> = { pause: "is paused", resume: "continues", drop: "was dropped" };

function Query(props: { name: string; query: StandingQuery; path: string; running: boolean; carryOut: (operation: Operation, done: string) => Promise<void> }) {
  const { query, path, name } = props;
  const [dropping, setDropping] = useState(false);
  const [busy, setBusy] = useState(false);
  // Only the owner and administrators may change a query.
  const owns = may("operator") && (query.owner === who.value?.name || may("admin"));
  const change = async (kind: Change) => {
    setBusy(true);
    try {
      const operation = await post<Operation>(`${path}/${kind}`);
      await props.carryOut(operation, `Query ${query.id} ${DONE[kind]}.`);
    } finally {
      setBusy(false);
    }
  };
  const paused = query.state === "paused";
  return (
    <section class="card" aria-labelledby="query-title">
      <header class="title">
        <h2 id="query-title">Query {query.id}</h2>
        <State name={query.state} />
        <span class="push" />
        {owns && (
          <>
            <button type="button" disabled={busy || !props.running} onClick={() => void change(paused ? "resume" : "pause").catch((error: Error) => say(error.message))}>
              {paused ? "Resume" : "Pause"}
            </button>
            <button type="button" disabled={busy || !props.running} onClick={() => setDropping(true)}>
              Drop
            </button>
          </>
        )}
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "query", "results", name, String(query.id)),
            curl: curl(`${path}/results`),
            python: python(project.value, `list(client.application(${literal(name)}).queries.results(${query.id}))`),
          })}
        />
      </header>
      <pre tabIndex={0}>
        <bdi>{query.query}</bdi>
      </pre>
      <Facts
        items={[
          ["Owner", <bdi>{query.owner}</bdi>],
          ["Since", `epoch ${query.epoch}`],
          ["Watermark", query.watermark ? <>{moment(query.watermark)}: windows up to it have been answered</> : "none yet"],
          ...(query.first_window ? [["First window", `${moment(query.first_window.start)} to ${moment(query.first_window.end)}`] as [string, string]] : []),
          ["Expires", query.expires_at ? <>{moment(query.expires_at)}</> : "never"],
          ["Cost", `${query.cost} of 250 units`],
          ["Operator", <code>{query.operator}</code>],
        ]}
      />
      <Results name={name} query={query} path={`${path}/results`} />
      {dropping && (
        <Dialog title={`Drop query ${query.id}`} action="Drop" danger close={() => setDropping(false)} onSubmit={() => change("drop")}>
          <p>The query ends with the next epoch, and its results are deleted. Its id is not used again.</p>
          <pre tabIndex={0}>
            <bdi>{clip(query.query, 4000)}</bdi>
          </pre>
        </Dialog>
      )}
    </section>
  );
}

function AddDialog(props: { path: string; name: string; nodes: GraphNode[]; operators: GraphNode[]; close: () => void; added: (operation: Operation) => void }) {
  const { operators, nodes } = props;
  const [text, setText] = useState("");
  const [operator, setOperator] = useState(operators[0]?.name ?? "");
  const [expires, setExpires] = useState("");
  const chosen = operators.find((each) => each.name === operator);
  const columns = Object.entries(nodes.find((node) => node.id === chosen?.inputs?.[0])?.columns ?? {});
  const windows = chosen?.description?.windows;
  return (
    <Dialog
      title="Add a standing query"
      action="Add"
      wide
      close={props.close}
      onSubmit={async () => {
        props.added(await post<Operation>(props.path, { query: text, operator: operator || null, expires_after: expires || null }));
      }}
    >
      {operators.length > 1 && (
        <Field label="Operator">
          <select value={operator} onChange={(event) => setOperator(event.currentTarget.value)}>
            {operators.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </Field>
      )}
      <Field label="Query" hint={`SELECT device, count(*) AS n GROUP BY device WINDOW '5 minutes'${Array.isArray(windows) ? `; windows from ${windows[0]} to ${windows[1]}` : ""}`}>
        <textarea required rows={5} maxLength={4000} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </Field>
      {columns.length > 0 && (
        <p class="quiet">
          {count(columns.length, "column")}:{" "}
          {columns.slice(0, 40).map(([column, type], index) => (
            <span key={column}>
              {index > 0 && ", "}
              <code>
                {column} {type}
              </code>
            </span>
          ))}
          {columns.length > 40 && " and others"}
        </p>
      )}
      <Field label="Drop after (optional)" hint="An interval, such as 7 days">
        <input value={expires} onInput={(event) => setExpires(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}
