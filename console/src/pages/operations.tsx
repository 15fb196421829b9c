/** Operations of an application or a project, with their progress, results and cancellation. */
import { useEffect, useState } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { administers, may, project } from "../api/session";
import type { Operation, Page } from "../api/types";
import { curl, epochal, python } from "../model/commands";
import { clipped, duration, moment } from "../model/format";
import { amountOf } from "../model/progress";
import { address, choose, link } from "../router";
import { now, useData } from "../ui/data";
import { Age, CopyAs, Dialog, Loading, Problem, say, State } from "../ui/parts";

const PAGE = 100;
const MOST = 500;
const POLL_MS = 2000;
/** Kinds that can be cancelled. Those of the whole store need an administrator of the installation. */
const CANCELLED = new Set(["export", "import", "trial", "rekey"]);
const OF_THE_STORE = new Set(["collect", "verify"]);
const STATES = ["running", "succeeded", "failed", "cancelled"];

function mayCancel(each: Operation): boolean {
  if (each.state !== "running" || each.cancel_requested_at) return false;
  return OF_THE_STORE.has(each.kind) ? administers() : CANCELLED.has(each.kind) && may("operator");
}

export function Operations({ name }: { name: string | undefined }) {
  const path = resource(project.value, "operations");
  const { query } = address.value;
  const opened = query.get("operation");
  const kind = query.get("kind");
  const state = query.get("state");
  const [limit, setLimit] = useState(PAGE);
  const [cancelling, setCancelling] = useState<Operation | null>(null);
  const data = useData(
    `operations ${path} ${name ?? ""} ${limit}`,
    (signal) => get<Page<Operation>>(path, { limit, application: name }, signal),
    (event) => event.kind === "operation" && (!name || event.application === name),
  );
  const all = data.value?.items ?? [];
  const items = all.filter((each) => (!kind || each.kind === kind) && (!state || each.state === state));
  // Progress has no events.
  const running = all.some((each) => each.state === "running");
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(data.reload, POLL_MS);
    return () => clearInterval(timer);
  }, [running, path, limit]);
  const Title = name ? "h2" : "h1";
  const filter = (label: string, of: string, value: string | null, values: string[]) => (
    <label class="choice">
      <span>{label}</span>
      <select value={value ?? ""} onChange={(event) => choose({ [of]: event.currentTarget.value || null })}>
        <option value="">all</option>
        {values.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </label>
  );
  return (
    <section class={name ? "card" : "plain"} aria-labelledby="operations-title">
      <header class="title">
        <Title id="operations-title">Operations</Title>
        <span class="push" />
        {filter("Kind", "kind", kind, [...new Set([...all.map((each) => each.kind), ...(kind ? [kind] : [])])].sort())}
        {filter("State", "state", state, STATES)}
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "operations", "list"),
            curl: curl(path, { application: name }),
            python: python(project.value, "client.operations.list()"),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="operations" />}
      {data.value && items.length === 0 && <p class="empty">{all.length === 0 ? "No operations yet." : "No operation matches."}</p>}
      {items.map((each) => (
        <details key={each.id} class="opening" open={opened === each.id}>
          <summary>
            <b>{each.kind}</b>
            <State name={each.cancel_requested_at && each.state === "running" ? "cancelling" : each.state} />
            {each.application && !name && <span>{each.application}</span>}
            <span class="grow">
              {each.state === "running" ? <Progress text={each.progress} /> : <bdi>{clipped(each.error?.detail ?? "", 160)}</bdi>}
            </span>
            <small>
              {duration((each.finished_at ? Date.parse(each.finished_at) : now.value) - Date.parse(each.created_at))}, <Age at={each.created_at} />
            </small>
          </summary>
          <p class="quiet">
            {each.application && !name && (
              <>
                <a href={link("applications", each.application)}>{each.application}</a>,{" "}
              </>
            )}
            {each.id}, begun {moment(each.created_at)}
            {each.finished_at && `, ended ${moment(each.finished_at)}`}
          </p>
          {each.error && <p class="notice bad">{each.error.detail}</p>}
          <Result operation={each} />
          {mayCancel(each) && (
            <button type="button" onClick={() => setCancelling(each)}>
              Cancel<span class="hidden"> {each.kind}</span>
            </button>
          )}
        </details>
      ))}
      {data.value?.next_cursor && limit < MOST && (
        <p class="more">
          <button type="button" onClick={() => setLimit(MOST)}>
            Older operations
          </button>
        </p>
      )}
      {cancelling && (
        <Dialog
          title={`Cancel ${cancelling.kind}${cancelling.application ? ` of ${cancelling.application}` : ""}`}
          action="Cancel the operation"
          danger
          close={() => setCancelling(null)}
          onSubmit={async () => {
            await post(`${path}/${cancelling.id}/cancel`);
            say(`The ${cancelling.kind} is being cancelled.`);
            data.reload();
          }}
        >
          <p>
            Its partial results are deleted; what it has already {OF_THE_STORE.has(cancelling.kind) ? "deleted or repaired stays so" : "read is not changed"}.
            {cancelling.progress && ` Progress: ${cancelling.progress}.`}
          </p>
        </Dialog>
      )}
    </section>
  );
}

function Progress({ text }: { text: string | null }) {
  const amount = amountOf(text);
  if (!amount) return <bdi>{text}</bdi>;
  return (
    <span class="progress">
      <progress value={amount.done} max={amount.all} aria-label="Progress" /> {amount.text}
    </span>
  );
}

function Result({ operation: each }: { operation: Operation }) {
  if (each.state !== "succeeded") return null;
  return (
    <>
      {each.kind === "export" && each.application && (
        <p>
          <a class="button" download href={resource(project.value, "applications", each.application, "exports", each.id)}>
            Download the bundle
          </a>
        </p>
      )}
      {each.kind === "trial" && each.application && (
        <p>
          <a href={`${link("applications", each.application, "versions", "upgrade")}?trial=${each.id}`}>Report of the trial</a>
        </p>
      )}
      {each.result && each.kind !== "trial" && <pre tabIndex={0}>{JSON.stringify(each.result, null, 1).slice(0, 20_000)}</pre>}
    </>
  );
}
