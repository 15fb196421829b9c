/** Transactions that sinks of an application have not committed, what blocks them, and decisions about them. */
import { useState } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { LOAD } from "../api/events";
import { may, project } from "../api/session";
import type { Application, Operation, Transaction } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { count } from "../model/format";
import { bySink, type SinkQueue } from "../model/transactions";
import { useData } from "../ui/data";
import { OperationStatus, useOperation } from "../ui/operation";
import { Age, CopyAs, Dialog, Field, Loading, Problem, say, State } from "../ui/parts";

type Action = "retry" | "commit" | "abort";
interface Decision {
  transaction: Transaction;
  action: Action;
}
/** The driver lists at most so many. */
const LISTED = 100;

export function Transactions({ application }: { application: Application }) {
  const name = application.name;
  // Only a running driver carries a decision out.
  const decides = may("admin") && application.state === "running";
  const path = resource(project.value, "applications", name, "transactions");
  const [decision, setDecision] = useState<Decision | null>(null);
  const [begun, setBegun] = useState<string | null>(null);
  const operation = useOperation(begun);
  const data = useData(
    `transactions ${path}`,
    (signal) => get<{ items: Transaction[] }>(path, {}, signal),
    (event) => event.application === name && event.kind !== "savepoint" && event.kind !== LOAD,
  );
  const items = data.value?.items ?? [];
  const queues = bySink(items);
  const blocked = queues.filter((each) => each.state === "blocked");
  return (
    <section class="card" aria-labelledby="transactions-title">
      <header class="title">
        <h2 id="transactions-title">
          Transactions of sinks{" "}
          {items.length > 0 && (
            <small>
              {items.length >= LISTED && "at least "}
              {count(items.length, "transaction")} not committed
              {blocked.length > 0 && `, ${count(blocked.length, "sink")} blocked`}
            </small>
          )}
        </h2>
        <span class="push" />
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "transaction", "list", name),
            curl: curl(path),
            python: python(project.value, `client.application(${literal(name)}).transactions.list()`),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="transactions" />}
      {data.value && items.length === 0 && <p class="empty">No transaction waits: every prepared epoch is committed in every sink.</p>}
      {begun && <OperationStatus data={operation} what={decided(operation.value, blocked)} />}
      {queues.map((queue) => (
        <Queue key={queue.sink} queue={queue} decide={decides ? (transaction, action) => setDecision({ transaction, action }) : null} />
      ))}
      {blocked.length > 0 && !decides && (
        <p class="caption quiet">
          {may("admin") ? "A running driver commits or aborts transactions. Start the application to decide them." : "An administrator of the project can retry, commit or abort a blocked transaction."}
        </p>
      )}
      {decision && (
        <DecisionDialog
          path={path}
          decision={decision}
          behind={queues.find((each) => each.sink === decision.transaction.sink)?.behind.filter((each) => each.epoch > decision.transaction.epoch).length ?? 0}
          begun={setBegun}
          close={() => {
            setDecision(null);
            data.reload();
          }}
        />
      )}
    </section>
  );
}

/** What an operation requests, from its result. A retry succeeds when it has begun, also if the sink fails again. */
function decided(operation: Operation | null | undefined, blocked: SinkQueue[]): string | undefined {
  const { sink, epoch, action } = (operation?.result ?? {}) as Partial<Record<string, string | number>>;
  if (action === undefined) return undefined;
  const again = action === "retry" && blocked.some((each) => each.sink === sink) ? ", which is still blocked" : "";
  return `request to ${action} epoch ${epoch} of ${sink}${again}`;
}

type Decide = ((transaction: Transaction, action: Action) => void) | null;

function Queue({ queue, decide }: { queue: SinkQueue; decide: Decide }) {
  const { next, behind } = queue;
  return (
    <section class="queue" aria-label={`Sink ${queue.sink}`}>
      <header class="title">
        <h3>{queue.sink}</h3>
        <State name={queue.state} />
        <span>
          epoch {next.epoch}, {count(next.rows, "row")}
          {next.prepared_at && (
            <>
              , prepared <Age at={next.prepared_at} />
            </>
          )}
          {queue.since && (
            <>
              , blocked since <Age at={queue.since} />
            </>
          )}
        </span>
        <span class="push" />
        {decide && <Choices transaction={next} decide={decide} actions={["retry", "commit", "abort"]} />}
      </header>
      {queue.error !== null && <p class="notice bad">{queue.error}</p>}
      {behind.length > 0 && (
        <details class="opening">
          <summary>
            {count(behind.length, "later epoch")} {behind.length === 1 ? "waits" : "wait"} for epoch {next.epoch}
          </summary>
          <div class="scroll" tabIndex={0} role="group" aria-label={`Later epochs of ${queue.sink}`}>
            <table>
              <thead>
                <tr>
                  <th scope="col">Epoch</th>
                  <th scope="col" class="number">Rows</th>
                  <th scope="col">Prepared</th>
                  {decide && <th scope="col">Decide</th>}
                </tr>
              </thead>
              <tbody>
                {behind.map((each) => (
                  <tr key={each.epoch}>
                    <td class="nowrap">epoch {each.epoch}</td>
                    <td class="number">{count(each.rows, "row")}</td>
                    <td class="nowrap">{each.prepared_at && <Age at={each.prepared_at} />}</td>
                    {decide && (
                      <td class="nowrap">
                        <Choices transaction={each} decide={decide} actions={["commit", "abort"]} inline />
                      </td>
                    )}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </details>
      )}
    </section>
  );
}

const LABELS = { retry: "Retry", commit: "Commit", abort: "Abort" };

function Choices(props: { transaction: Transaction; decide: NonNullable<Decide>; actions: Action[]; inline?: boolean }) {
  const { epoch, sink } = props.transaction;
  return (
    <>
      {props.actions.map((action) => (
        <button key={action} type="button" class={props.inline ? "inline" : ""} onClick={() => props.decide(props.transaction, action)}>
          {LABELS[action]}
          <span class="hidden"> epoch {epoch} of {sink}</span>
        </button>
      ))}
    </>
  );
}

const MEANINGS = {
  retry: "The commit is repeated immediately, with all of its rows.",
  commit: "Declares that the rows were applied by hand. Epochal does not write them: if they were not applied, the sink remains without them.",
  abort: "Discards the rows. This sink remains without them, while the state and other sinks keep them.",
};

function DecisionDialog(props: { path: string; decision: Decision; behind: number; begun: (operation: string) => void; close: () => void }) {
  const { path, behind, close } = props;
  const { transaction, action } = props.decision;
  const [message, setMessage] = useState("");
  return (
    <Dialog
      title={`${LABELS[action]} epoch ${transaction.epoch} of ${transaction.sink}`}
      action={`${LABELS[action]} epoch ${transaction.epoch}`}
      danger={action !== "retry"}
      close={close}
      onSubmit={async () => {
        const operation = await post<Operation>(`${path}/${encodeURIComponent(transaction.sink)}/${transaction.epoch}/${action}`, { message: message || null });
        props.begun(operation.id);
        say(`${LABELS[action]} of epoch ${transaction.epoch} is requested.`);
      }}
    >
      <p>{MEANINGS[action]}</p>
      <ul class="figures">
        <li><b>{transaction.rows.toLocaleString("en")}</b> {transaction.rows === 1 ? "row" : "rows"} of epoch {transaction.epoch}</li>
        {behind > 0 && (
          <li><b>{behind.toLocaleString("en")}</b> later {behind === 1 ? "epoch" : "epochs"} of {transaction.sink}, which {behind === 1 ? "waits" : "wait"} for this one</li>
        )}
      </ul>
      {transaction.error !== null && <p class="notice bad">{transaction.error}</p>}
      <p>
        The decision concerns only the sink {transaction.sink}. {action === "retry" ? "The audit log shows it." : "It cannot be undone. The audit log and the lineage show it."}
      </p>
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}
