/** A picked snapshot: its facts, and what can be done with it. */
import { useState } from "preact/hooks";
import { get, post, remove, resource } from "../api/client";
import { may, project } from "../api/session";
import type { Application, LineageEdge, Operation, Schemas } from "../api/types";
import { bytes, count, moment } from "../model/format";
import type { Item } from "../model/lineage";
import { link, navigate } from "../router";
import { Dialog, Facts, Field, say } from "../ui/parts";
import { NAME } from "./application";
import { titleOf } from "./lineage_row";
import { ForkDialog, RollbackDialog } from "./restore";

type Open = "fork" | "rollback" | "tag" | "message" | "pin" | "export" | null;

export function SnapshotCard(props: { application: Application; node: Item; edge: LineageEdge | undefined; done: () => void }) {
  const { node, edge } = props;
  const [open, setOpen] = useState<Open>(null);
  const path = resource(project.value, "applications", node.application, "snapshots", String(node.epoch));
  const close = () => {
    setOpen(null);
    props.done();
  };
  const take = async (change: () => Promise<unknown>) => {
    try {
      await change();
      props.done();
    } catch (error) {
      say((error as Error).message);
    }
  };
  const mine = node.application === props.application.name;
  const facts: [string, preact.ComponentChildren][] = [
    ["Rows", `${count(node.counts.rows_in, "row")} in, ${count(node.counts.rows_out, "row")} out`],
    ["State", `${count(node.counts.state_rows, "row")} changed, ${bytes(node.counts.state_bytes)}`],
    ["Code", <><code>{node.filename}</code> version {node.version}, <code title={node.artifact}>{node.artifact.slice(0, 12)}</code></>],
  ];
  if (Object.keys(node.parameters).length > 0) facts.push(["Parameters", <code>{JSON.stringify(node.parameters)}</code>]);
  if (node.committed_at) facts.push(["Committed", moment(node.committed_at)]);
  if (edge && edge.kind !== "epoch") facts.push([edge.kind, <>{edge.label?.by ? `by ${edge.label.by}` : ""} from epoch {edge.from.epoch}{edge.label?.message && <>: <bdi>{edge.label.message}</bdi></>}</>]);
  if (node.message) facts.push(["Message", <bdi>{node.message}</bdi>]);
  return (
    <section class="card picked" aria-labelledby="picked-title">
      <header class="title">
        <h2 id="picked-title">
          {node.application}, {titleOf(node)}
        </h2>
        <span class="push" />
        {!node.collected && (
          <>
            {may("author") && (
              <button type="button" class="primary" onClick={() => setOpen("fork")}>
                Fork from here
              </button>
            )}
            {may("operator") && mine && (
              <button type="button" onClick={() => setOpen("rollback")}>
                Roll back to here
              </button>
            )}
            <a class="button" href={`${link("applications", node.application, "state")}?epoch=${node.epoch}`}>
              State as of epoch {node.epoch}
            </a>
          </>
        )}
      </header>
      {node.epochs > 1 && <p class="quiet">The numbers are those of all {node.partial ? "folded epochs of the run" : count(node.epochs, "epoch")}; actions concern epoch {node.epoch}, the newest.</p>}
      <Facts items={facts} />
      {may("operator") && (
        <div class="annotations">
          {!node.collected && node.pinned && (
            <button type="button" onClick={() => void take(() => remove(`${path}/pin`))}>
              Unpin
            </button>
          )}
          {!node.collected && !node.pinned && (
            <button type="button" onClick={() => setOpen("pin")}>
              Pin
            </button>
          )}
          <button type="button" onClick={() => setOpen("tag")}>
            Add a tag
          </button>
          <button type="button" onClick={() => setOpen("message")}>
            {node.message ? "Edit the message" : "Write a message"}
          </button>
          {!node.collected && (
            <button type="button" onClick={() => setOpen("export")}>
              Export
            </button>
          )}
          {node.tags.map((tag) => (
            <span key={tag} class="mark tag removable">
              {tag}
              <button type="button" class="inline" aria-label={`Remove the tag ${tag}`} onClick={() => void take(() => remove(`${path}/tags/${encodeURIComponent(tag)}`))}>
                ×
              </button>
            </span>
          ))}
        </div>
      )}
      {open === "fork" && <ForkDialog node={node} close={() => setOpen(null)} />}
      {open === "rollback" && <RollbackDialog application={props.application} node={node} close={close} />}
      {open === "tag" && <TagDialog path={path} node={node} close={close} />}
      {open === "message" && <MessageDialog path={path} node={node} close={close} />}
      {open === "pin" && <PinDialog path={path} node={node} close={close} />}
      {open === "export" && <ExportDialog node={node} close={() => setOpen(null)} />}
    </section>
  );
}

interface Annotating {
  path: string;
  node: Item;
  close: () => void;
}

function TagDialog({ path, node, close }: Annotating) {
  const [name, setName] = useState("");
  const [message, setMessage] = useState("");
  const [move, setMove] = useState(false);
  return (
    <Dialog title={`Tag epoch ${node.epoch}`} action="Tag" close={close} onSubmit={() => post(`${path}/tags`, { name, message: message || null, move })}>
      <p>A tag is a name for look-ups, forks and rollbacks. It does not keep the snapshot from expiring.</p>
      <Field label="Name" hint="Lower-case letters, digits and hyphens">
        <input required pattern={NAME} value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
      <label class="check">
        <input type="checkbox" checked={move} onChange={(event) => setMove(event.currentTarget.checked)} />
        <span>Move the tag if another snapshot has it.</span>
      </label>
    </Dialog>
  );
}

function MessageDialog({ path, node, close }: Annotating) {
  const [message, setMessage] = useState(node.message ?? "");
  return (
    <Dialog
      title={`Message of epoch ${node.epoch}`}
      action={message || !node.message ? "Save" : "Delete the message"}
      close={close}
      onSubmit={async () => {
        if (message) await post(`${path}/message`, { message });
        else if (node.message) await remove(`${path}/message`);
      }}
    >
      <p>The message stays in the lineage after the snapshot has expired.</p>
      <Field label="Message">
        <textarea rows={3} value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

function PinDialog({ path, node, close }: Annotating) {
  const [message, setMessage] = useState("");
  return (
    <Dialog title={`Pin epoch ${node.epoch}`} action="Pin" close={close} onSubmit={() => post(`${path}/pin`, { message: message || null })}>
      <p>The snapshot does not expire until it is unpinned.</p>
      <Field label="Reason (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

function ExportDialog({ node, close }: { node: Item; close: () => void }) {
  const [since, setSince] = useState("");
  const [message, setMessage] = useState("");
  return (
    <Dialog
      title={`Export ${node.application} at epoch ${node.epoch}`}
      action="Export"
      close={close}
      onSubmit={async () => {
        const body = { epoch: node.epoch, since: since ? Number(since) : null, message: message || null };
        const operation = await post<Operation>(resource(project.value, "applications", node.application, "export"), body);
        navigate(`${link("operations")}?operation=${operation.id}`);
      }}
    >
      <p>
        A bundle is a file with the state, the code and the parameters, which can be imported into another control
        plane. It can be downloaded from the page of operations for seven days.
      </p>
      <Field label="Only changes after epoch (optional)" hint="An earlier epoch that the importer has">
        <input type="number" min={1} max={node.epoch - 1} value={since} onInput={(event) => setSince(event.currentTarget.value)} />
      </Field>
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

/** Pins of an application, which other pages list. */
export async function pinsOf(name: string, signal?: AbortSignal): Promise<Schemas["SnapshotPinAnswer"][]> {
  const path = resource(project.value, "applications", name, "pins");
  return (await get<{ items: Schemas["SnapshotPinAnswer"][] }>(path, { limit: 500 }, signal)).items;
}
