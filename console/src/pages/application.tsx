/** One application: its header with actions, and its views. */
import type { FunctionComponent } from "preact";
import { useState } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { LOAD } from "../api/events";
import { may, project } from "../api/session";
import type { Application } from "../api/types";
import { curl, epochal, python } from "../model/commands";
import { link, route } from "../router";
import { useData, type Data } from "../ui/data";
import { lazy } from "../ui/lazy";
import { Age, CopyAs, Dialog, Field, Loading, Problem, say, State } from "../ui/parts";
import { start, StopDialog } from "./applications";
import { Overview } from "./overview";

export interface View {
  application: Application;
  reload: () => void;
}

const StateView = lazy<View>(() => import("./state"), "the state page");
const QueriesView = lazy<View>(() => import("./queries"), "the queries page");
const LineageView = lazy<View>(() => import("./lineage"), "the lineage page");
const VersionsView = lazy<View>(() => import("./versions"), "the versions page");
const RetentionView = lazy<View>(() => import("./retention"), "the retention page");
const WorkView = lazy<View>(() => import("./work"), "the page");
const HistoryView = lazy<View>(() => import("./lifecycle"), "the history");
const LogsView = lazy<{ application: Application }>(() => import("./logs"), "the log");
const EventsView = lazy<{ application?: Application }>(() => import("./events"), "the events page");

const VIEWS: [string, string][] = [
  ["", "Overview"],
  ["state", "State"],
  ["queries", "Queries"],
  ["lineage", "Lineage"],
  ["versions", "Versions"],
  ["retention", "Retention"],
  ["work", "Sinks and operations"],
  ["history", "History"],
  ["logs", "Log"],
  ["events", "Events"],
];

export const ApplicationPage: FunctionComponent<{ name: string }> = ({ name }) => {
  const data: Data<Application> = useData(
    `application ${project.value} ${name}`,
    (signal) => get<Application>(resource(project.value, "applications", name), {}, signal),
    (event) => event.application === name && event.kind !== LOAD && (event.kind !== "epoch" || event.data.state === "committed"),
  );
  const view = route.value[2] ?? "";
  const application = data.value;
  return (
    <>
      <nav class="crumbs" aria-label="Path">
        <a href={link("applications")}>Applications</a>
      </nav>
      <header class="title">
        <h1>{name}</h1>
        {application && <State name={application.state} />}
        {application?.head && (
          <span class="quiet">
            epoch {application.head.epoch}
            {application.head.committed_at && (
              <>
                , <Age at={application.head.committed_at} />
              </>
            )}
          </span>
        )}
        <span class="push" />
        {application && <Actions application={application} reload={data.reload} />}
      </header>
      <nav class="tabs" aria-label="Views of the application">
        {VIEWS.map(([path, label]) => (
          <a key={path} href={link("applications", name, ...(path ? [path] : []))} aria-current={view === path ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      <Problem problem={data.problem} retry={data.reload} />
      {!application && !data.problem && <Loading what={name} />}
      {application && view === "" && <Overview key={name} application={application} reload={data.reload} />}
      {application && view === "state" && <StateView key={name} application={application} reload={data.reload} />}
      {application && view === "queries" && <QueriesView key={name} application={application} reload={data.reload} />}
      {application && view === "lineage" && <LineageView key={name} application={application} reload={data.reload} />}
      {application && view === "versions" && <VersionsView key={name} application={application} reload={data.reload} />}
      {application && view === "retention" && <RetentionView key={name} application={application} reload={data.reload} />}
      {application && view === "work" && <WorkView key={name} application={application} reload={data.reload} />}
      {application && view === "history" && <HistoryView key={name} application={application} reload={data.reload} />}
      {application && view === "logs" && <LogsView key={name} application={application} />}
      {application && view === "events" && <EventsView key={name} application={application} />}
    </>
  );
};

type Open = "stop" | "restart" | "savepoint" | "rescale" | null;

function Actions({ application, reload }: View) {
  const [open, setOpen] = useState<Open>(null);
  const close = () => {
    setOpen(null);
    reload();
  };
  const running = application.state === "running" || application.state === "starting";
  const path = resource(project.value, "applications", application.name);
  return (
    <div class="actions">
      {may("operator") && (
        <>
          {application.head && (
            <button type="button" onClick={() => setOpen("savepoint")}>
              Savepoint
            </button>
          )}
          <button type="button" onClick={() => setOpen("rescale")}>
            Rescale
          </button>
          {running && (
            <>
              <button type="button" onClick={() => setOpen("restart")}>
                Restart
              </button>
              <button type="button" onClick={() => setOpen("stop")}>
                Stop
              </button>
            </>
          )}
          {["stopped", "failed", "created"].includes(application.state) && !application.head?.drained && (
            <button type="button" class="primary" onClick={() => void start(application.name).then(reload)}>
              Start
            </button>
          )}
        </>
      )}
      <CopyAs
        commands={() => ({
          cli: epochal(project.value, "show", application.name),
          curl: curl(path),
          python: python(project.value, `client.application(${JSON.stringify(application.name)}).get()`),
        })}
      />
      {open === "stop" && <StopDialog application={application} close={close} />}
      {open === "savepoint" && <SavepointDialog application={application} close={close} />}
      {open === "rescale" && <RescaleDialog application={application} close={close} />}
      {open === "restart" && (
        <Dialog
          title={`Restart ${application.name}`}
          action="Restart"
          close={close}
          onSubmit={async () => {
            await post(`${path}/restart`);
            say(`${application.name} is restarting.`);
          }}
        >
          <p>
            The current epoch is committed, the driver ends, and another one continues after it. No row is lost or
            repeated. Sources are not read for the seconds in which Spark starts.
          </p>
        </Dialog>
      )}
    </div>
  );
}

export const NAME = "[a-z](?:[\\-a-z0-9]{0,61}[a-z0-9])?";

function SavepointDialog({ application, close }: { application: Application; close: () => void }) {
  const [name, setName] = useState("");
  const [message, setMessage] = useState("");
  return (
    <Dialog
      title="Create a savepoint"
      action="Create"
      close={close}
      onSubmit={async () => {
        const body = { name, message: message || null };
        await post(resource(project.value, "applications", application.name, "savepoints"), body);
        say(`Savepoint ${name} is being created.`);
      }}
    >
      <p>
        {application.state === "running"
          ? "A name for the next epoch. The application continues."
          : `A name for epoch ${application.head?.epoch ?? 0}.`}{" "}
        A savepoint does not expire.
      </p>
      <Field label="Name" hint="Lower-case letters, digits and hyphens">
        <input required pattern={NAME} value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <Field label="Message (optional)">
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

function RescaleDialog({ application, close }: { application: Application; close: () => void }) {
  const { parallelism, max_parallelism: most } = application.configuration;
  const [next, setNext] = useState(String(parallelism));
  return (
    <Dialog
      title={`Rescale ${application.name}`}
      action="Rescale"
      disabled={Number(next) === parallelism}
      close={close}
      onSubmit={async () => {
        await post(resource(project.value, "applications", application.name, "rescale"), { parallelism: Number(next) });
        say(`${application.name} is rescaled to ${next} subtasks.`);
      }}
    >
      <p>
        {application.state === "running"
          ? "The number of subtasks changes at the next epoch, without a restart. Key groups move between subtasks; no state is copied."
          : "The next start uses the new number of subtasks."}
      </p>
      <Field label="Subtasks of each operator" hint={`Now ${parallelism}, at most ${most}`}>
        <input type="number" required min={1} max={most} value={next} onInput={(event) => setNext(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}
