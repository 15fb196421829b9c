/** Commands that check, try out and make a proposed version. */
import { resource } from "../api/client";
import { project } from "../api/session";
import type { Json } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import type { Proposal } from "../model/versions";

/** The body of a preflight or a new version. */
export interface Sent {
  artifact: string | null;
  parameters: Record<string, Json> | null;
  acceptance: { changed: string[]; partial: string[] };
  configuration?: Record<string, unknown>;
}

/** `version` has all settings, `preflight` those that change. Null if the proposal is not valid. */
export function upgradeCommands(name: string, proposal: Proposal, sent: { preflight: Sent; version: Sent } | null, epochs: number) {
  const parameters = Object.entries(sent?.preflight.parameters ?? {}).flatMap(([key, value]) => ["-p", `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`]);
  const lists = (option: string, names: string[]) => (names.length ? [option, names.join(",")] : []);
  const options = [
    ...(proposal.artifact ? ["FILE.py"] : []),
    ...parameters,
    ...proposal.settings.flatMap((line) => ["--set", line]),
    ...lists("--accept-changed", proposal.changed),
    ...lists("--accept-partial", proposal.partial),
    ...lists("--allow-dropped-state", proposal.dropped),
  ];
  const given = (body: Sent | undefined) => [
    ...(proposal.artifact ? [literal(proposal.artifact)] : []),
    ...(body?.parameters ? [`parameters=${literal(body.parameters)}`] : []),
    ...(body?.configuration ? [`configuration=${literal(body.configuration)}`] : []),
    ...(proposal.changed.length ? [`accept_changed=${literal(proposal.changed)}`] : []),
    ...(proposal.partial.length ? [`accept_partial=${literal(proposal.partial)}`] : []),
  ];
  const versions = `client.application(${literal(name)}).versions`;
  return {
    cli: [epochal(project.value, "preflight", name, ...options, "--trial", String(epochs)), epochal(project.value, "upgrade", name, ...options)].join("\n"),
    curl: [
      curl(resource(project.value, "preflight"), {}, { application: name, ...sent?.preflight, trial: epochs }),
      curl(resource(project.value, "applications", name, "versions"), {}, sent?.version ?? {}),
    ].join("\n"),
    python: python(
      project.value,
      `client.operations.wait(${versions}.trial(${[String(epochs), ...given(sent?.preflight)].join(", ")}))`,
      `${versions}.create(${given(sent?.version).join(", ")})`,
    ),
  };
}
