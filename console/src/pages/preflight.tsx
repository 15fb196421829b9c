/** The report of a preflight: the parts of both versions side by side, and the differences of a trial in numbers. */
import type { ComponentChildren } from "preact";
import type { Preflight, Schemas, Trial } from "../api/types";
import { clipped, count, duration } from "../model/format";
import { tally } from "../model/versions";

type Part = Schemas["PartChange"];
type Table = Schemas["StateChange"];

export function Report({ report }: { report: Preflight }) {
  const { comparison, trial } = report;
  const tables = tally(report);
  return (
    <>
      <ul class="figures" aria-label="Effect on the state">
        <Figure value={tables.kept} noun="state table" what="kept" />
        <Figure value={tables.added} noun="state table" what="added" />
        <Figure value={tables.dropped} noun="state table" what="removed" />
        {tables.refused > 0 && <Figure value={tables.refused} noun="state table" what="that cannot be continued" />}
        {trial && <Figure value={stateDifferences(trial)} noun="row" what="of state differ in the trial" />}
        {trial && <Figure value={outputDifferences(trial)} noun="row" what="of output differ in the trial" />}
      </ul>
      {comparison.problems.map((text) => <p key={text} class="notice bad">{text}</p>)}
      {comparison.warnings.map((text) => <p key={text} class="notice">{text}</p>)}
      {report.restarts && <p class="notice">Resources of Spark change: the upgrade stops the driver and starts another one.</p>}
      <div class="scroll tall" tabIndex={0} role="group" aria-label="Parts of both versions">
        <table>
          <thead>
            <tr>
              <th scope="col">Part</th>
              <th scope="col">Now</th>
              <th scope="col">New version</th>
              <th scope="col">Verdict</th>
            </tr>
          </thead>
          <tbody>
            {comparison.tables.map((table) => <TableRow key={table.table} table={table} />)}
            {rows("operator", comparison.operators)}
            {rows("source", comparison.sources)}
            {rows("sink", comparison.sinks)}
            {rows("entry", comparison.entries)}
          </tbody>
        </table>
      </div>
      {trial && <TrialReport trial={trial} />}
    </>
  );
}

export function Figure(props: { value: number; noun: string; what: string }) {
  const { value, noun } = props;
  return (
    <li>
      <b>{value.toLocaleString("en")}</b> {value === 1 ? noun : `${noun}s`} {props.what}
    </li>
  );
}

function rows(kind: string, parts: readonly Part[]) {
  return parts.map((part) => (
    <Row key={`${kind} ${part.name}`} kind={kind} name={part.name} verdict={part.verdict} before={part.before} after={part.after} />
  ));
}

function Row(props: { kind: string; name: string; verdict: string; before: ComponentChildren; after: ComponentChildren }) {
  return (
    <tr>
      <td>
        <b>{props.name}</b> <small>{props.kind}</small>
      </td>
      <td>{props.before ?? <span class="quiet">none</span>}</td>
      <td>{props.after ?? <span class="quiet">none</span>}</td>
      <td>
        <Verdict name={props.verdict} />
      </td>
    </tr>
  );
}

const MARKS: Record<string, string> = { added: "added", removed: "deleted", dropped: "deleted", refused: "deleted", evolved: "changed", changed: "changed" };

export function Verdict({ name }: { name: string }) {
  return name === "same" ? <span class="quiet">same</span> : <span class={`mark ${MARKS[name] ?? ""}`}>{name}</span>;
}

function TableRow({ table }: { table: Table }) {
  const before: ComponentChildren[] = [];
  const after: ComponentChildren[] = [];
  const line = (side: ComponentChildren[], text: string) => side.push(<div key={side.length}><code>{text}</code></div>);
  for (const column of table.added) line(after, `${String(column.name)} ${String(column.type)}`);
  for (const [name, types] of Object.entries(table.widened ?? {})) {
    line(before, `${name} ${types[0]}`);
    line(after, `${name} ${types[1]}`);
  }
  for (const name of table.dropped) line(before, name);
  for (const change of table.changed) {
    const what = change.column === null ? change.what : `${change.what} of ${change.column}`;
    line(before, `${what}: ${change.before}`);
    line(after, `${what}: ${change.after}`);
  }
  for (const name of table.code_changed) after.push(<div key={`code ${name}`}>code of <code>{name}</code> differs</div>);
  if (table.unknown) after.push(<div key="unknown">the meaning cannot be compared</div>);
  const is = (text: string, lines: ComponentChildren[]) => (lines.length > 0 ? lines : text);
  return (
    <Row
      kind="state table"
      name={table.table}
      verdict={table.verdict}
      before={table.verdict === "added" ? null : is("state table", before)}
      after={table.verdict === "dropped" ? null : is("state table", after)}
    />
  );
}

function stateDifferences(trial: Trial): number {
  return trial.tables.reduce((sum, table) => sum + table.only_before + table.only_after + table.different, 0);
}

function outputDifferences(trial: Trial): number {
  return trial.sinks.reduce((sum, sink) => sum + sink.only_before + sink.only_after, 0);
}

function TrialReport({ trial }: { trial: Trial }) {
  return (
    <section class="part" aria-label="Trial">
      <h3>
        Trial{" "}
        <small>
          {count(trial.epochs, "epoch")} from {trial.base === null ? "the start" : `epoch ${trial.base}`}, once with each version, in {duration(trial.seconds * 1000)}
        </small>
      </h3>
      {trial.same && <p>Both versions give the same state and the same output.</p>}
      <div class="scroll" tabIndex={0} role="group" aria-label="State after the trial">
        <table>
          <thead>
            <tr>
              <th scope="col">State table</th>
              <th scope="col" class="number">Equal</th>
              <th scope="col" class="number">Different</th>
              <th scope="col" class="number">Only now</th>
              <th scope="col" class="number">Only new version</th>
              <th scope="col">Examples: now, new version</th>
            </tr>
          </thead>
          <tbody>
            {trial.tables.map((table) => (
              <tr key={table.table}>
                <td><b>{table.table}</b></td>
                <td class="number">{count(table.rows, "row")}</td>
                <td class="number">{count(table.different, "row")}</td>
                <td class="number">{count(table.only_before, "row")}</td>
                <td class="number">{count(table.only_after, "row")}</td>
                <td>
                  {table.examples.slice(0, 5).map((example, index) => (
                    <div key={index} class="example">
                      <code>{text(example.key)}</code> <del>{text(example.before)}</del> <ins>{text(example.after)}</ins>
                    </div>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="scroll" tabIndex={0} role="group" aria-label="Output of the trial">
        <table>
          <thead>
            <tr>
              <th scope="col">Sink</th>
              <th scope="col" class="number">Now</th>
              <th scope="col" class="number">New version</th>
              <th scope="col" class="number">Only now</th>
              <th scope="col" class="number">Only new version</th>
              <th scope="col">Examples</th>
            </tr>
          </thead>
          <tbody>
            {trial.sinks.map((sink) => (
              <tr key={sink.sink}>
                <td>
                  <b>{sink.sink}</b>
                  {sink.committed !== null && sink.committed !== sink.before && <small> {count(sink.committed, "row")} committed, by other versions too</small>}
                </td>
                <td class="number">{count(sink.before, "row")}</td>
                <td class="number">{count(sink.after, "row")}</td>
                <td class="number">{count(sink.only_before, "row")}</td>
                <td class="number">{count(sink.only_after, "row")}</td>
                <td>
                  {sink.examples.slice(0, 6).map((example, index) => (
                    <div key={index} class="example">
                      {example.version === "before" ? <del>{text(example.row)}</del> : <ins>{text(example.row)}</ins>}
                    </div>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function text(value: unknown): string {
  return value === undefined || value === null ? "none" : clipped(typeof value === "string" ? value : JSON.stringify(value), 160);
}
