/** Versions of an application: code, parameters and graph of each, and what changed from the previous one. */
import { useState } from "preact/hooks";
import { get, resource } from "../api/client";
import { may, project } from "../api/session";
import type { Page, Version } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { clipped, count, moment } from "../model/format";
import { differing, graphDifferences, settingDifferences, type PartDifference } from "../model/versions";
import { address, choose, link, route } from "../router";
import { useData } from "../ui/data";
import { OperationStatus, useOperation } from "../ui/operation";
import { Age, CopyAs, Facts, FailureNotice, Loading, Problem } from "../ui/parts";
import type { View } from "./application";
import { Verdict } from "./preflight";
import { Upgrade } from "./upgrade";

const PAGE = 50;

export default function Versions(view: View) {
  const name = view.application.name;
  const path = resource(project.value, "applications", name, "versions");
  const [limit, setLimit] = useState(PAGE);
  const data = useData(
    `versions ${path} ${view.application.version} ${limit}`,
    (signal) => get<Page<Version>>(path, { limit }, signal),
    (event) => event.application === name && event.kind === "operation",
  );
  const upgrading = route.value[3] === "upgrade" && may("author");
  const items = data.value?.items ?? [];
  const asked = address.value.query.get("version");
  const index = asked === null ? 0 : items.findIndex((each) => String(each.number) === asked);
  const version = items[index];
  return (
    <>
      <section class="card" aria-labelledby="versions-title">
        <header class="title">
          <h2 id="versions-title">Versions</h2>
          <span class="push" />
          {may("author") && (upgrading ? <a class="button" href={link("applications", name, "versions")}>Close the upgrade</a> : <a class="button" href={link("applications", name, "versions", "upgrade")}>Upgrade</a>)}
          <CopyAs
            commands={() => ({
              cli: epochal(project.value, "show", name),
              curl: curl(path),
              python: python(project.value, `client.application(${literal(name)}).versions.list()`),
            })}
          />
        </header>
        <Problem problem={data.problem} retry={data.reload} />
        {!data.value && !data.problem && <Loading what="versions" />}
        {items.length > 0 && (
          <ul class="lines queries">
            {items.map((each) => (
              <li key={each.number} class={each === version && !upgrading ? "selected" : ""}>
                <a href={`${link("applications", name, "versions")}?version=${each.number}`} aria-current={each === version && !upgrading ? "true" : undefined}>
                  Version {each.number}
                </a>
                {each.failure && <Verdict name="refused" />}
                {each.number === view.application.version && <i class="mark head">current</i>}
                <code title={each.artifact}>{each.artifact.slice(0, 12)}</code>
                <span class="grow">
                  <bdi>{clipped(each.message ?? "", 200)}</bdi>
                </span>
                <small>
                  {each.created_by}, <Age at={each.created_at} />
                </small>
              </li>
            ))}
          </ul>
        )}
        {data.value?.next_cursor && limit < 500 && (
          <p class="more">
            <button type="button" onClick={() => setLimit(500)}>
              Older versions
            </button>
          </p>
        )}
      </section>
      {upgrading && items[0] && <Upgrade {...view} latest={items.find((each) => !each.failure) ?? items[0]} />}
      {!upgrading && version && <Details version={version} before={items.slice(index + 1).find((each) => !each.failure)} />}
      {!upgrading && asked !== null && data.value && !version && (
        <p class="empty">
          Version {asked} is not among these. <button type="button" class="inline" onClick={() => choose({ version: null })}>Latest version</button>
        </p>
      )}
    </>
  );
}

function Details({ version, before }: { version: Version; before: Version | undefined }) {
  const operation = useOperation(version.operation ?? null);
  const graph = before?.graph && version.graph ? graphDifferences(before.graph.nodes, version.graph.nodes) : null;
  const parameters = before ? differing(before.parameters, version.parameters) : [];
  const settings = before ? settingDifferences(before, version) : [];
  const accepted = [...version.acceptance.changed, ...version.acceptance.partial.map((each) => `${each} (later rows only)`)];
  return (
    <section class="card" aria-labelledby="version-title">
      <h2 id="version-title">Version {version.number}</h2>
      <Facts
        items={[
          ["Code", <code key="code">{version.artifact}</code>],
          ["Created", `${moment(version.created_at)} by ${version.created_by}`],
          ["Parameters", Object.keys(version.parameters).length ? <code key="parameters">{JSON.stringify(version.parameters)}</code> : "none"],
          ["Subtasks", `${version.configuration.parallelism} per operator`],
          ...(version.message ? ([["Message", <bdi key="message">{version.message}</bdi>]] as [string, preact.ComponentChildren][]) : []),
          ...(accepted.length ? ([["Accepted differences", accepted.join(", ")]] as [string, string][]) : []),
        ]}
      />
      {version.operation && <OperationStatus data={operation} />}
      {version.failure && <FailureNotice failure={version.failure} title="The upgrade failed, and the version is not used." />}
      {!before && <p class="quiet">The first version.</p>}
      {before && (
        <section class="part" aria-label="Differences">
          <h3>
            Compared with version {before.number}{" "}
            <small>{version.artifact === before.artifact ? "the same code" : "other code"}{graph === null ? "; a graph is missing" : `, ${count(graph.length, "part")} of the graph differ${graph.length === 1 ? "s" : ""}`}</small>
          </h3>
          {graph && graph.length > 0 && <Differences title="Graph" parts={graph} />}
          {parameters.length > 0 && <Differences title="Parameters" parts={[{ name: "parameters", type: "", what: "changed", members: parameters }]} />}
          {settings.length > 0 && <Differences title="Settings" parts={[{ name: "settings", type: "", what: "changed", members: settings }]} />}
          {graph?.length === 0 && parameters.length === 0 && settings.length === 0 && <p>Graph, parameters and settings are the same.</p>}
        </section>
      )}
      {version.graph && version.graph.warnings.map((text) => <p key={text} class="notice">{text}</p>)}
    </section>
  );
}

function Differences({ title, parts }: { title: string; parts: PartDifference[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={title}>
      <table>
        <thead>
          <tr>
            <th scope="col">{title}</th>
            <th scope="col">Before</th>
            <th scope="col">This version</th>
          </tr>
        </thead>
        <tbody>
          {parts.flatMap((part) => [
              part.type && (
                <tr key={`${part.type} ${part.name}`}>
                  <td>
                    <b>{clipped(part.name, 200)}</b> <small>{part.type}</small>
                  </td>
                  <td>{part.what === "removed" ? <Verdict name="removed" /> : part.what === "added" ? <span class="quiet">none</span> : ""}</td>
                  <td>{part.what === "added" ? <Verdict name="added" /> : part.what === "removed" ? <span class="quiet">none</span> : ""}</td>
                </tr>
              ),
              ...part.members.map((member) => (
                <tr key={`${part.name} ${member.name}`}>
                  <td>{member.name}</td>
                  <td>{member.before === null ? <span class="quiet">none</span> : <code>{clipped(member.before, 500)}</code>}</td>
                  <td>{member.after === null ? <span class="quiet">none</span> : <code>{clipped(member.after, 500)}</code>}</td>
                </tr>
              )),
            ])}
        </tbody>
      </table>
    </div>
  );
}
