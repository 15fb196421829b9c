/** The overview of an application: failures, graph with rates, rates over time, epochs as a timeline. */
import { get, resource } from "../api/client";
import { LOAD } from "../api/events";
import { project } from "../api/session";
import type { EpochPage, Execution, Load, Page, StateTable, Version } from "../api/types";
import { clipped, moment, plain } from "../model/format";
import { link } from "../router";
import { useData } from "../ui/data";
import { Age, Facts, FailureNotice, Loading, Problem, State } from "../ui/parts";
import type { View } from "./application";
import { Rates, SHOWN_EPOCHS, Timeline } from "./epochs";
import { GraphPart } from "./overview_graph";

export function Overview({ application }: View) {
  const name = application.name;
  const path = (...segments: string[]) => resource(project.value, "applications", name, ...segments);
  const mine = (kinds: string[]) => (event: { application: string | null; kind: string }) =>
    event.application === name && kinds.includes(event.kind);
  const epochs = useData(`epochs ${path()}`, (signal) => get<EpochPage>(path("epochs"), { limit: SHOWN_EPOCHS }, signal), mine(["epoch"]));
  const load = useData(`load ${path()}`, (signal) => get<Load>(path("load"), {}, signal), mine(["epoch", "execution", LOAD]));
  const versions = useData(`versions ${path()}`, (signal) => get<Page<Version>>(path("versions"), { limit: 50 }, signal), mine(["operation", "execution"]));
  const tables = useData(
    `tables ${path()}`,
    (signal) => get<Page<StateTable>>(path("state"), { limit: 100 }, signal).catch(() => ({ items: [], next_cursor: null })),
    mine(["epoch"]),
  );
  const executions = useData(`executions ${path()}`, (signal) => get<Page<Execution>>(path("executions"), { limit: 5 }, signal), mine(["execution"]));
  const version = versions.value?.items.find((each) => each.number === application.version) ?? versions.value?.items[0];
  const failures = (executions.value?.items ?? []).flatMap((execution) =>
    execution.attempts.filter((attempt) => attempt.failure).map((attempt) => ({ execution, attempt })),
  );
  const failure = application.failure ?? application.restarts?.failure;
  const blocked = Object.values(load.value?.sinks ?? {}).some((sink) => sink.blocked_since);
  const list = epochs.value?.items ?? [];
  return (
    <>
      {failure && (
        <FailureNotice
          failure={failure}
          title={application.state === "failed" ? "The application has failed." : "The latest attempt failed; another one follows."}
        />
      )}
      {application.detail && !failure && (
        <p class="notice">
          {application.detail} {blocked && <a href={link("applications", name, "work")}>Transactions of sinks</a>}
        </p>
      )}
      <section class="card" aria-labelledby="graph-title">
        <h2 id="graph-title">
          Graph <small>version {application.version}</small>
        </h2>
        {version?.graph ? (
          <GraphPart name={name} version={version} load={load.value} tables={tables.value?.items ?? []} epochs={list} running={application.state === "running"} />
        ) : (
          <Loading what="the graph" />
        )}
      </section>
      <Problem problem={epochs.problem} retry={epochs.reload} />
      {list.length > 1 && <Rates epochs={list} />}
      <Timeline name={name} epochs={list} page={epochs.value} path={path("epochs")} reload={epochs.reload} />
      {failures.length > 0 && (
        <section class="card" aria-labelledby="failures-title">
          <h2 id="failures-title">Failed attempts</h2>
          {failures.slice(0, 10).map(({ execution, attempt }) => (
            <details key={`${execution.id}/${attempt.number}`} class="opening">
              <summary>
                <span>attempt {attempt.number}</span>
                <State name={attempt.state} />
                <span>{attempt.ended_at ? <Age at={attempt.ended_at} /> : ""}</span>
                <span class="grow">{clipped(`${attempt.failure!.type}: ${attempt.failure!.message}`, 160)}</span>
              </summary>
              <FailureNotice failure={attempt.failure!} title={`Attempt ${attempt.number}, version ${execution.version}.`} />
            </details>
          ))}
        </section>
      )}
      <Settings application={application} />
    </>
  );
}

function Settings({ application }: { application: View["application"] }) {
  return (
    <details class="card settings">
      <summary>
        <h2>Parameters and configuration</h2>
      </summary>
      <Facts
        items={[
          ...Object.entries(application.parameters).map(([name, value]): [string, preact.ComponentChildren] => [name, <code>{clipped(plain(value as never), 500)}</code>]),
          ["Code", <code>{application.artifact.slice(0, 12)}</code>],
          ["Created", moment(application.created_at)],
          ...Object.entries(application.configuration)
            .filter(([, value]) => value !== null)
            .map(([name, value]): [string, preact.ComponentChildren] => [name.replaceAll("_", " "), <code>{clipped(plain(value as never), 300)}</code>]),
        ]}
      />
    </details>
  );
}
