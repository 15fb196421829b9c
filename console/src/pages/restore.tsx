/** Fork from a snapshot, and roll back to one with its plan. */
import { useState } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { project } from "../api/session";
import type { Application, LineageNode, RollbackPlan, SnapshotDiff } from "../api/types";
import { count } from "../model/format";
import { link, navigate } from "../router";
import { useData } from "../ui/data";
import { Age, Dialog, Field, Loading, Problem, say } from "../ui/parts";
import { NAME } from "./application";

export function ForkDialog({ node, close }: { node: LineageNode; close: () => void }) {
  const [name, setName] = useState("");
  const [shadow, setShadow] = useState(true);
  const [parameters, setParameters] = useState("{}");
  const [message, setMessage] = useState("");
  const [accepted, setAccepted] = useState("");
  const [created, setCreated] = useState<string | null>(null);
  return (
    <Dialog
      title={`Fork ${node.application} at epoch ${node.epoch}`}
      action="Fork"
      close={() => {
        close();
        if (created) navigate(link("applications", created));
      }}
      onSubmit={async () => {
        let given: unknown;
        try {
          given = JSON.parse(parameters || "{}");
        } catch {
          throw new Error("The parameters are not valid JSON.");
        }
        const body = { name, epoch: node.epoch, shadow, parameters: given, message: message || null, acceptance: acceptanceOf(accepted) };
        await post(resource(project.value, "applications", node.application, "fork"), body);
        say(`${name} is created.`);
        setCreated(name);
        navigate(link("applications", name));
      }}
    >
      <p>
        A new application continues from the state and the source positions of this snapshot. No state is copied, and{" "}
        {node.application} continues unchanged.
      </p>
      <Field label="Name of the new application" hint="Lower-case letters, digits and hyphens">
        <input required pattern={NAME} value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <label class="check">
        <input type="checkbox" checked={shadow} onChange={(event) => setShadow(event.currentTarget.checked)} />
        <span>
          Shadow: write no output. Without it, parameters must name other targets for the sinks than those of {node.application}.
        </span>
      </label>
      <Field label="Other parameters, as JSON" hint={`Merged over those of ${node.application}`}>
        <textarea rows={3} spellcheck={false} value={parameters} onInput={(event) => setParameters(event.currentTarget.value)} />
      </Field>
      <Field label="Accepted differences (optional)" hint="Columns or operators whose meaning may change, such as totals.lo; partial:totals.mean for added columns that count later rows only">
        <input value={accepted} onInput={(event) => setAccepted(event.currentTarget.value)} />
      </Field>
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

/** `revenue.total, partial:revenue.largest` as the API has it. */
export function acceptanceOf(text: string): { changed: string[]; partial: string[] } {
  const names = text.split(/[\s,]+/).filter(Boolean);
  const partial = names.filter((each) => each.startsWith("partial:")).map((each) => each.slice("partial:".length));
  return { changed: names.filter((each) => !each.startsWith("partial:")), partial };
}

const RULES: Record<string, string> = {
  stays: "stays visible",
  "moved-aside": "is hidden from readers",
  "new-marker": "stays, under a new marker",
  unknown: "is unknown",
};

export function RollbackDialog(props: { application: Application; node: LineageNode; close: () => void }) {
  const { application, node } = props;
  const [aside, setAside] = useState(false);
  const [message, setMessage] = useState("");
  const [sure, setSure] = useState(false);
  const [accepted, setAccepted] = useState("");
  const path = resource(project.value, "applications", application.name, "rollback");
  const plan = useData(`plan ${path} ${node.epoch} ${aside} ${accepted}`, () => post<RollbackPlan>(path, { epoch: node.epoch, dry_run: true, move_aside: aside, acceptance: acceptanceOf(accepted) }));
  const value = plan.value;
  // Keys that differ from the head, which the plan does not count.
  const there = resource(project.value, "applications", application.name, "snapshots", String(node.epoch), "diff");
  const diff = useData(`keys ${there}`, (signal) => get<SnapshotDiff>(there, { to: "head" }, signal));
  return (
    <Dialog
      wide
      danger
      title={`Roll ${application.name} back to epoch ${node.epoch}`}
      action={value ? `Discard ${count(value.epochs, "epoch")}` : "Roll back"}
      disabled={!value || !sure}
      close={props.close}
      onSubmit={async () => {
        const body = { epoch: node.epoch, move_aside: aside, message: message || null, acceptance: acceptanceOf(accepted), ...(value?.confirm ? { confirm: value.confirm } : {}) };
        await post(path, body);
        say(`${application.name} is rolled back to epoch ${node.epoch}.`);
      }}
    >
      <Problem problem={plan.problem} retry={plan.reload} />
      {(plan.problem || accepted) && (
        <Field label="Accepted differences" hint="Columns or operators whose meaning may change, such as totals.lo">
          <input value={accepted} onChange={(event) => setAccepted(event.currentTarget.value)} />
        </Field>
      )}
      {!value && !plan.problem && <Loading what="the plan" />}
      {value && (
        <>
          <p>
            A new branch begins at epoch {value.to.epoch}
            {value.to.committed_at && (
              <>
                , committed <Age at={value.to.committed_at} />
              </>
            )}
            . {value.epochs === 0 ? "No committed epoch is discarded." : `${count(value.epochs, "epoch")} (${value.first} to ${value.last}) are discarded; they can be read until they expire.`}{" "}
            Sources continue from the snapshot's positions. {value.restarts && "The application is stopped and started again; epochs until then are discarded, too."}
          </p>
          {value.version_then !== null && value.version_then !== value.version && (
            <p class="notice">Version {value.version} continues; the snapshot is of version {value.version_then}.</p>
          )}
          {value.uncounted > 0 && <p class="notice">{count(value.uncounted, "discarded epoch")} without a readable manifest are not counted.</p>}
          <ul class="figures">
            <li><b>{value.epochs.toLocaleString("en")}</b> {value.epochs === 1 ? "epoch" : "epochs"} discarded</li>
            {value.sinks.length > 0 && (
              <li><b>{value.sinks.some((sink) => sink.rows === null) ? "?" : value.sinks.reduce((sum, sink) => sum + (sink.rows ?? 0), 0).toLocaleString("en")}</b> rows written by them</li>
            )}
            {diff.value && diff.value.tables.map((table) => (
              <li key={table.table}>
                <b>{table.added === null ? "?" : ((table.added ?? 0) + (table.changed ?? 0) + (table.deleted ?? 0) + (table.expired ?? 0)).toLocaleString("en")}</b> keys of {table.table} return to their values
              </li>
            ))}
          </ul>
          {value.sinks.length > 0 && <div class="scroll" tabIndex={0} role="group" aria-label="Output of discarded epochs by sink">
            <table>
              <thead>
                <tr>
                  <th scope="col">Sink</th>
                  <th scope="col" class="number">Discarded epochs</th>
                  <th scope="col" class="number">Rows</th>
                  <th scope="col">Their output</th>
                </tr>
              </thead>
              <tbody>
                {value.sinks.map((sink) => (
                  <tr key={sink.sink}>
                    <td>
                      <b>{sink.sink}</b>
                      <small> {sink.target}</small>
                    </td>
                    <td class="number">{sink.epochs === null ? "unknown" : count(sink.epochs, "epoch")}</td>
                    <td class="number">{sink.rows === null ? "unknown" : count(sink.rows, "row")}</td>
                    <td>
                      {RULES[sink.rule] ?? sink.rule}
                      <small> {sink.explanation}</small>
                      {sink.restore && <small> {sink.restore}</small>}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>}
          <label class="check">
            <input type="checkbox" checked={aside} onChange={(event) => setAside(event.currentTarget.checked)} />
            <span>Hide the output of discarded epochs in sinks of files and HDFS.</span>
          </label>
          <Field label="Message (optional)">
            <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
          </Field>
          <label class="check">
            <input type="checkbox" checked={sure} onChange={(event) => setSure(event.currentTarget.checked)} />
            <span>I have read the plan.</span>
          </label>
        </>
      )}
    </Dialog>
  );
}
