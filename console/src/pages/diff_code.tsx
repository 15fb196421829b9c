/** The code of two snapshots: their hashes, and the difference of their sources if both can be read. */
import { may } from "../api/session";
import { readFiles, reasonOf, type Sources } from "../api/source";
import type { SnapshotDiff, SourceFile } from "../api/types";
import { diffLines, hunks } from "../model/textdiff";
import { useData } from "../ui/data";
import { Problem } from "../ui/parts";

const CONTEXT = 3;

export function CodeDiff({ diff }: { diff: SnapshotDiff }) {
  const same = diff.code === "same";
  const side = (which: SnapshotDiff["from"]) => (
    <>
      {which.version !== null && `version ${which.version} of ${which.application}, `}
      <code>{which.filename ?? "unknown file"}</code> <code title={which.artifact}>{which.artifact.slice(0, 12)}</code>
    </>
  );
  return (
    <section class="part" aria-label="Code">
      <h3>Code <small>{same ? "the same" : "differs"}</small></h3>
      {same ? <p>{side(diff.to)}</p> : (
        <ul class="sides">
          <li><del>{side(diff.from)}</del></li>
          <li><ins>{side(diff.to)}</ins></li>
        </ul>
      )}
      {!same && may("operator") && <SourceDiff from={diff.from.artifact} to={diff.to.artifact} />}
    </section>
  );
}

function SourceDiff({ from, to }: { from: string; to: string }) {
  const data = useData(`sources ${from} ${to}`, async (signal) => Promise.all([readFiles(from, signal), readFiles(to, signal)]));
  if (!data.value) return <Problem problem={data.problem} />;
  const [before, after] = data.value;
  const omitted = new Map([...before, ...after].filter((file) => file.omitted).map((file) => [file.path, file]));
  const compared = texts(before, after, omitted);
  return (
    <>
      <FilesDiff {...compared} />
      {[...omitted.values()].map((file) => (
        <p key={file.path} class="quiet">{`${file.path} is not compared: it ${reasonOf(file)}.`}</p>
      ))}
    </>
  );
}

/** The texts of both sides without the files that one of them omits. Two single files are compared whatever their names are. */
function texts(before: readonly SourceFile[], after: readonly SourceFile[], omitted: ReadonlyMap<string, SourceFile>): { before: Sources; after: Sources } {
  const name = before.length === 1 && after.length === 1 ? after[0]!.path : null;
  const of = (files: readonly SourceFile[]) =>
    Object.fromEntries(files.filter((file) => !omitted.has(file.path)).map((file) => [name ?? file.path, file.text ?? ""]));
  return { before: of(before), after: of(after) };
}

export function FilesDiff({ before, after }: { before: Sources; after: Sources }) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort().filter((name) => before[name] !== after[name]);
  return (
    <>
      {names.map((name) => (
        <figure key={name} class="code">
          <figcaption>{name}</figcaption>
          <div class="scroll tall" tabIndex={0} role="group" aria-label={`Changes of ${name}`}>
            <table>
              <tbody>
                {hunks(diffLines(before[name] ?? "", after[name] ?? ""), CONTEXT).map((line, index) =>
                  line === null ? (
                    <tr key={index} class="gap"><td colSpan={3}>…</td></tr>
                  ) : (
                    <tr key={index} class={line.kind}>
                      <td class="number">{line.before}</td>
                      <td class="number">{line.after}</td>
                      <td><code>{line.kind === "added" ? "+ " : line.kind === "removed" ? "- " : "  "}{line.text}</code></td>
                    </tr>
                  ),
                )}
              </tbody>
            </table>
          </div>
        </figure>
      ))}
    </>
  );
}
