/** A text of code with line numbers, read-only. Only the visible lines are in the document. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { INVISIBLE } from "../model/commands";
import { VirtualList } from "./parts";

const ROW = 20;
/** Lines below the marked one that are scrolled into view with it. */
const BELOW = 8;

export default function CodeView(props: { text: string; line: number | null; label: string }) {
  const lines = useMemo(() => props.text.replace(/\r?\n$/, "").split(/\r?\n/), [props.text]);
  const reveal = useSignal(-1);
  useEffect(() => {
    reveal.value = props.line === null ? 0 : Math.min(lines.length - 1, props.line - 1 + BELOW);
  }, [props.text, props.line]);
  return (
    <VirtualList
      class="codeview"
      count={lines.length}
      rowHeight={ROW}
      label={props.label}
      reveal={reveal}
      render={(index) => (
        <div key={index} class={index + 1 === props.line ? "codeline defining" : "codeline"} aria-current={index + 1 === props.line ? "true" : undefined}>
          <span class="number">{index + 1}</span>
          <code dir="ltr">{withoutInvisible(lines[index] ?? "")}</code>
        </div>
      )}
    />
  );
}

/** Characters that would show other code than Python reads are replaced by their numbers. */
function withoutInvisible(line: string) {
  const found = line.match(INVISIBLE);
  if (!found) return line;
  return line.split(INVISIBLE).flatMap((part, index) => {
    const sign = found[index];
    return sign === undefined ? [part] : [part, <mark key={index}>U+{sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}</mark>];
  });
}
