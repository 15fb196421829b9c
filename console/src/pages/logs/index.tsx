/** The log of an application's driver: live, by attempt, filtered by level, text and epoch. */
import { useState } from "preact/hooks";
import { get, resource, withQuery } from "../../api/client";
import { project } from "../../api/session";
import type { Application, Execution, Page } from "../../api/types";
import { curl, epochal, literal, python } from "../../model/commands";
import { count, moment } from "../../model/format";
import { filtered, type LeastLevel, type LogLine } from "../../model/log";
import { address, choose } from "../../router";
import { useData } from "../../ui/data";
import { CopyAs, Loading, Problem, State } from "../../ui/parts";
import { MOST_LINES, useLog } from "./follow";
import { Lines } from "./lines";

const TAIL = 1000;
const LEVELS: [LeastLevel, string][] = [
  ["", "all lines"],
  ["info", "info and above"],
  ["warning", "warnings and errors"],
  ["error", "errors"],
];

export default function Logs({ application }: { application: Application }) {
  const { query } = address.value;
  const attempt = number(query.get("attempt"));
  const branch = query.get("branch");
  const epoch = number(query.get("epoch")) ?? "";
  const words = query.get("text") ?? "";
  const level = LEVELS.find(([name]) => name === query.get("level"))?.[0] ?? "";
  const [readMore, setReadMore] = useState(false);
  const tail = readMore || epoch !== "" ? MOST_LINES : TAIL;
  const [held, setHeld] = useState<readonly LogLine[] | null>(null);
  const path = resource(project.value, "applications", application.name, "logs");
  const log = useLog(path, { attempt, branch, tail });
  const executions = useData(
    `executions ${path}`,
    (signal) => get<Page<Execution>>(resource(project.value, "applications", application.name, "executions"), { limit: 50 }, signal),
    (event) => event.application === application.name && event.kind === "execution",
  );
  const all = held ?? log.lines;
  const lines = filtered(all, { level, text: words, epoch });
  const waiting = held === null ? 0 : (log.lines.at(-1)?.number ?? 0) - (held.at(-1)?.number ?? 0);
  const asked = { attempt, branch };
  return (
    <>
      <header class="title tools">
        <h2>Log</h2>
        <State name={held === null ? log.state : "paused"} />
        <span class="push" />
        <label class="choice">
          <span>Attempt</span>
          <select
            value={attempt === null ? "" : `${branch ?? ""}/${attempt}`}
            onChange={(event) => {
              const [on, chosen] = event.currentTarget.value.split("/");
              setHeld(null);
              choose({ attempt: chosen ?? null, branch: on || null, epoch: null });
            }}
          >
            <option value="">latest, then the next</option>
            {attempt !== null && !known(executions.value, attempt, branch) && <option value={`${branch ?? ""}/${attempt}`}>{attempt}</option>}
            {executions.value?.items.flatMap((execution) =>
              [...execution.attempts].reverse().map((each) => (
                <option key={`${execution.id}/${each.number}`} value={`${branchOf(execution, attempt, branch)}/${each.number}`}>
                  {each.number}, {each.state}, {moment(each.started_at)}
                </option>
              )),
            )}
          </select>
        </label>
        <label class="choice">
          <span>Level</span>
          <select value={level} onChange={(event) => choose({ level: event.currentTarget.value || null })}>
            {LEVELS.map(([name, label]) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        </label>
        <input type="search" data-search aria-label="Find in the log" placeholder="Find in the log" value={words} onInput={(event) => choose({ text: event.currentTarget.value || null })} />
        <button type="button" aria-pressed={held !== null} onClick={() => setHeld(held === null ? log.lines : null)}>
          {held === null ? "Pause" : "Resume"}
        </button>
        <CopyAs
          commands={() => ({
            cli: epochal(project.value, "logs", "--follow", ...(attempt ? ["--attempt", attempt] : []), ...(branch ? ["--branch", branch] : []), application.name),
            curl: curl(path, { ...asked, follow: true }).replace("curl ", "curl -N "),
            python: python(project.value, `"\\n".join(client.application(${literal(application.name)}).logs(${[attempt && `attempt=${attempt}`, branch && `branch=${literal(branch)}`].filter(Boolean).join(", ")}))`),
          })}
        />
      </header>
      <Problem problem={log.problem} retry={log.again} />
      <section class="card flush" aria-label="Lines of the log, oldest first">
        <p class="logfacts">
          <span>
            {filteredText(lines.length, all.length)}
            {waiting > 0 && `; ${count(waiting, "new line")} since the pause`}
          </span>
          {epoch !== "" && (
            <button type="button" class="inline" onClick={() => choose({ epoch: null })}>
              Only epoch {epoch}: show all
            </button>
          )}
          <span class="push" />
          {all.length >= tail && tail < MOST_LINES && (
            <button type="button" class="inline" onClick={() => setReadMore(true)}>
              Read up to {count(MOST_LINES, "line")}
            </button>
          )}
          <a href={withQuery(path, { ...asked, tail: MOST_LINES })} download={`${application.name}${attempt ? `-${attempt}` : ""}.log`}>
            Download
          </a>
        </p>
        {log.state === "reading" && all.length === 0 ? (
          <Loading what="the log" />
        ) : lines.length === 0 ? (
          <p class="empty">{all.length === 0 ? (log.problem ? "No line." : "No line yet.") : `None of the last ${count(all.length, "line")} matches.`}</p>
        ) : (
          <Lines lines={lines} words={words} live={log.state === "live"} label={`Log of ${application.name}`} />
        )}
      </section>
    </>
  );
}

function number(text: string | null): string | null {
  return text !== null && /^\d{1,18}$/.test(text) ? text : null;
}

function filteredText(found: number, of: number): string {
  return found === of ? count(of, "line") : `${count(found, "line")} of ${count(of, "line")}`;
}

function known(page: Page<Execution> | undefined, attempt: string, branch: string | null): boolean {
  return page?.items.some((execution) => (branch === null || execution.branch === branch) && execution.attempts.some((each) => String(each.number) === attempt)) ?? false;
}

/** The branch that the address of an attempt has: none, if the address of the shown one has none. */
function branchOf(execution: Execution, attempt: string | null, branch: string | null): string {
  return attempt !== null && branch === null && execution.attempts.some((each) => String(each.number) === attempt) ? "" : (execution.branch ?? "");
}
