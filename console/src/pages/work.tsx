/** Sinks of an application and their transactions, its savepoints and its operations; without one, operations of the project. */
import { useState } from "preact/hooks";
import { get, post, remove, resource } from "../api/client";
import { LOAD } from "../api/events";
import { may, project } from "../api/session";
import type { Application, Page, Savepoint, Transaction } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count } from "../model/format";
import { link } from "../router";
import { useData } from "../ui/data";
import { Age, CopyAs, Dialog, Loading, Problem, say, State } from "../ui/parts";
import type { View } from "./application";
import { Collections } from "./collections";
import { Operations } from "./operations";

export default function Work({ application }: Partial<View>) {
  return (
    <>
      {application && <Transactions application={application} />}
      {application && <Savepoints name={application.name} />}
      <Operations name={application?.name} />
      {!application && <Collections />}
    </>
  );
}

type Decision = { transaction: Transaction; action: "retry" | "commit" | "abort" };

/** What a transaction waits for. */
function stateOf(each: Transaction): string {
  return each.error !== null ? "blocked" : each.driver ? "committing" : "waiting for a driver";
}

function Transactions({ application }: { application: Application }) {
  const name = application.name;
  // Only a running driver carries a decision out.
  const decides = may("admin") && application.state === "running";
  const path = resource(project.value, "applications", name, "transactions");
  const [decision, setDecision] = useState<Decision | null>(null);
  const data = useData(
    `transactions ${path}`,
    (signal) => get<{ items: Transaction[] }>(path, {}, signal),
    (event) => event.application === name && event.kind !== "savepoint" && event.kind !== LOAD,
  );
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="transactions-title">
      <header class="title">
        <h2 id="transactions-title">
          Transactions of sinks{" "}
          {items.length > 0 && (
            <small>
              {count(items.length, "transaction")} {items.length === 1 ? "is" : "are"} not committed, {items.filter((each) => each.error !== null).length} blocked
            </small>
          )}
        </h2>
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
                <th scope="col">State</th>
                <th scope="col" class="number">Rows</th>
                <th scope="col">Prepared</th>
                <th scope="col">What blocks it</th>
                {decides && <th scope="col">Decide</th>}
              </tr>
            </thead>
            <tbody>
              {items.map((each) => (
                <tr key={`${each.sink}/${each.epoch}`}>
                  <td>{each.sink}</td>
                  <td class="nowrap">epoch {each.epoch}</td>
                  <td class="nowrap">
                    <State name={stateOf(each)} />
                  </td>
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
                  {decides && (
                    <td class="nowrap">
                      {(["retry", "commit", "abort"] as const).map((action) => (
                        <button key={action} type="button" class="inline" onClick={() => setDecision({ transaction: each, action })}>
                          {action}
                          <span class="hidden"> epoch {each.epoch} of {each.sink}</span>
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
      {items.length > 0 && may("admin") && !decides && <p class="caption quiet">A running driver commits or aborts transactions. Start the application to decide them.</p>}
      {decision && (
        <DecisionDialog
          path={path}
          decision={decision}
          behind={items.filter((each) => each.sink === decision.transaction.sink && each.epoch > decision.transaction.epoch)}
          close={() => {
            setDecision(null);
            data.reload();
          }}
        />
      )}
    </section>
  );
}

const MEANINGS = {
  retry: "The commit is repeated immediately.",
  commit: "Declares that the rows were applied by hand. Epochal does not write them.",
  abort: "Declares that the rows are discarded. This sink remains without them.",
};

function DecisionDialog(props: { path: string; decision: Decision; behind: Transaction[]; close: () => void }) {
  const { path, behind, close } = props;
  const { transaction, action } = props.decision;
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
      <p>{MEANINGS[action]}</p>
      <ul class="figures">
        <li><b>{transaction.rows.toLocaleString("en")}</b> {transaction.rows === 1 ? "row" : "rows"} of epoch {transaction.epoch}</li>
        <li><b>{behind.length}</b> later {behind.length === 1 ? "epoch" : "epochs"} of {transaction.sink}, which {behind.length === 1 ? "waits" : "wait"} for this one</li>
      </ul>
      {transaction.error !== null && <p class="notice bad">{transaction.error}</p>}
      <p>
        The decision concerns only the sink {transaction.sink}. The audit log and the lineage show it.
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
