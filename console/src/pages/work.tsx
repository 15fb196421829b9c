/** Operations, and for an application also transactions of its sinks and its savepoints. */
import { useState } from "preact/hooks";
import { get, post, remove, resource } from "../api/client";
import { may, project } from "../api/session";
import type { Operation, Page, Savepoint, Transaction } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count, duration, moment } from "../model/format";
import { address, link } from "../router";
import { now, useData } from "../ui/data";
import { Age, CopyAs, Dialog, Loading, Problem, say, State } from "../ui/parts";
import type { View } from "./application";

export default function Work({ application }: Partial<View>) {
  return (
    <>
      {application && <Transactions name={application.name} />}
      {application && <Savepoints name={application.name} />}
      <Operations name={application?.name} />
    </>
  );
}

type Decision = { transaction: Transaction; action: "retry" | "commit" | "abort" };

function Transactions({ name }: { name: string }) {
  const path = resource(project.value, "applications", name, "transactions");
  const [decision, setDecision] = useState<Decision | null>(null);
  const data = useData(
    `transactions ${path}`,
    (signal) => get<{ items: Transaction[] }>(path, {}, signal),
    (event) => event.application === name && event.kind !== "savepoint",
  );
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="transactions-title">
      <header class="title">
        <h2 id="transactions-title">Transactions of sinks</h2>
        <span class="push" />
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "show", name),
            curl: curl(path),
            python: python(project.value, `client.application(${literal(name)}).transactions.list()`),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="transactions" />}
      {data.value && items.length === 0 && <p class="empty">No transaction waits: every prepared epoch is committed in every sink.</p>}
      {items.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Transactions">
          <table>
            <thead>
              <tr>
                <th scope="col">Sink</th>
                <th scope="col">Epoch</th>
                <th scope="col" class="number">Rows</th>
                <th scope="col">Prepared</th>
                <th scope="col">What blocks it</th>
                {may("admin") && <th scope="col">Decide</th>}
              </tr>
            </thead>
            <tbody>
              {items.map((each) => (
                <tr key={`${each.sink}/${each.epoch}`}>
                  <td>{each.sink}</td>
                  <td>epoch {each.epoch}</td>
                  <td class="number">{count(each.rows, "row")}</td>
                  <td>{each.prepared_at && <Age at={each.prepared_at} />}</td>
                  <td>
                    {each.error ?? (each.driver ? "the commit is in progress" : "no driver runs")}
                    {each.waiting_since && (
                      <small>
                        {" "}
                        since <Age at={each.waiting_since} />
                      </small>
                    )}
                  </td>
                  {may("admin") && (
                    <td class="nowrap">
                      {(["retry", "commit", "abort"] as const).map((action) => (
                        <button key={action} type="button" class="inline" onClick={() => setDecision({ transaction: each, action })}>
                          {action}
                        </button>
                      ))}
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {decision && <DecisionDialog path={path} decision={decision} close={() => setDecision(null)} />}
    </section>
  );
}

const MEANINGS = {
  retry: "The commit is repeated immediately.",
  commit: "Declares that the rows were applied by hand. Epochal does not write them.",
  abort: "Declares that the rows are discarded. This sink remains without them.",
};

function DecisionDialog({ path, decision, close }: { path: string; decision: Decision; close: () => void }) {
  const { transaction, action } = decision;
  const [message, setMessage] = useState("");
  return (
    <Dialog
      title={`${action} epoch ${transaction.epoch} of ${transaction.sink}`}
      action={action}
      danger={action !== "retry"}
      close={close}
      onSubmit={async () => {
        await post(`${path}/${encodeURIComponent(transaction.sink)}/${transaction.epoch}/${action}`, { message: message || null });
        say(`${action} of epoch ${transaction.epoch} is requested.`);
      }}
    >
      <p>
        {MEANINGS[action]} It concerns {count(transaction.rows, "row")} of epoch {transaction.epoch}. The audit log and
        the lineage show the decision.
      </p>
      <label class="field">
        <span>Message (optional)</span>
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </label>
    </Dialog>
  );
}

function Savepoints({ name }: { name: string }) {
  const path = resource(project.value, "applications", name, "savepoints");
  const [deleting, setDeleting] = useState<Savepoint | null>(null);
  const data = useData(`savepoints ${path}`, (signal) => get<Page<Savepoint>>(path, { limit: 200 }, signal), (event) => event.application === name && ["savepoint", "operation"].includes(event.kind));
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="savepoints-title">
      <h2 id="savepoints-title">Savepoints</h2>
      <Problem problem={data.problem} retry={data.reload} />
      {data.value && items.length === 0 && <p class="empty">No savepoints.</p>}
      {items.length > 0 && (
        <ul class="lines">
          {items.map((each) => (
            <li key={each.name}>
              <b>{each.name}</b>
              <a href={`${link("applications", name, "lineage")}?pick=${each.epoch}`}>epoch {each.epoch}</a>
              <span class="grow">
                <bdi>{clipped(each.message ?? "", 200)}</bdi>
              </span>
              <small>
                {each.created_by}, <Age at={each.created_at} />
              </small>
              {may("operator") && (
                <button type="button" onClick={() => setDeleting(each)}>
                  Delete<span class="hidden"> {each.name}</span>
                </button>
              )}
            </li>
          ))}
        </ul>
      )}
      {deleting && (
        <Dialog
          title={`Delete savepoint ${deleting.name}`}
          action="Delete"
          danger
          close={() => setDeleting(null)}
          onSubmit={async () => {
            await remove(`${path}/${encodeURIComponent(deleting.name)}`);
            data.reload();
          }}
        >
          <p>
            Epoch {deleting.epoch} then expires like others of its age. Forks of it keep the files that they need.
          </p>
        </Dialog>
      )}
    </section>
  );
}

const CANCELLED = new Set(["export", "import", "trial", "rekey", "collect", "verify"]);

function Operations({ name }: { name: string | undefined }) {
  const path = resource(project.value, "operations");
  const opened = address.value.query.get("operation");
  const [cancelling, setCancelling] = useState<Operation | null>(null);
  const data = useData(
    `operations ${path} ${name ?? ""}`,
    (signal) => get<Page<Operation>>(path, { limit: 100, application: name }, signal),
    (event) => event.kind === "operation" && (!name || event.application === name),
  );
  const items = data.value?.items ?? [];
  const Title = name ? "h2" : "h1";
  const body = (
    <>
      <header class="title">
        <Title id="operations-title">Operations</Title>
        <span class="push" />
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
      {data.value && items.length === 0 && <p class="empty">No operations yet.</p>}
      {items.map((each) => {
        const end = each.finished_at ? Date.parse(each.finished_at) : now.value;
        return (
          <details key={each.id} class="opening" open={opened === each.id}>
            <summary>
              <b>{each.kind}</b>
              <State name={each.state} />
              {each.application && !name && <span>{each.application}</span>}
              <span class="grow">
                <bdi>{clipped(each.error?.detail ?? each.progress ?? "", 160)}</bdi>
              </span>
              <small>
                {duration(end - Date.parse(each.created_at))}, <Age at={each.created_at} />
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
            {each.result && <pre tabIndex={0}>{JSON.stringify(each.result, null, 1).slice(0, 20_000)}</pre>}
            {each.state === "running" && CANCELLED.has(each.kind) && !each.cancel_requested_at && may("operator") && (
              <button type="button" onClick={() => setCancelling(each)}>
                Cancel
              </button>
            )}
          </details>
        );
      })}
      {cancelling && (
        <Dialog
          title={`Cancel ${cancelling.kind}`}
          action="Cancel the operation"
          danger
          close={() => setCancelling(null)}
          onSubmit={async () => {
            await post(`${path}/${cancelling.id}/cancel`);
            data.reload();
          }}
        >
          <p>Its partial results are deleted.</p>
        </Dialog>
      )}
    </>
  );
  return (
    <section class={name ? "card" : ""} aria-labelledby="operations-title">
      {name ? body : <div class="plain">{body}</div>}
    </section>
  );
}
