/** Lines of a log in a scrolling box. It follows the end while the end is visible, and stays where it is otherwise. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { LogLine } from "../../model/log";

const ROW = 20;
const AROUND = 20;

export function Lines({ lines, words, label, live }: { lines: readonly LogLine[]; words: string; label: string; live: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const atEnd = useRef(true);
  const first = useRef<number | null>(null);
  const measure = () => {
    const element = box.current;
    if (!element) return;
    atEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - ROW;
    const top = Math.floor(element.scrollTop / ROW);
    first.current = lines[Math.min(top, lines.length - 1)]?.number ?? null;
    setView({ top: element.scrollTop, height: element.clientHeight });
  };
  // Lines leave at the beginning when the page has too many: the visible ones stay at their place.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (atEnd.current) element.scrollTop = element.scrollHeight;
    else if (first.current !== null) {
      const place = lines.findIndex((line) => line.number >= first.current!);
      if (place >= 0) element.scrollTop = place * ROW + (element.scrollTop % ROW);
    }
    measure();
  }, [lines]);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [lines]);
  const from = Math.max(0, Math.floor(view.top / ROW) - AROUND);
  const to = Math.min(lines.length, Math.ceil((view.top + view.height) / ROW) + AROUND);
  const toEnd = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  return (
    <div class="loglines">
      <div ref={box} class="logbox" role="log" aria-live="off" aria-label={label} tabIndex={0} onScroll={measure}>
        <div style={{ height: `${lines.length * ROW}px` }}>
          <div style={{ transform: `translateY(${from * ROW}px)` }}>
            {lines.slice(from, to).map((line) => (
              <div key={line.number} class={`logline ${line.level}`}>
                <Marked text={line.text} words={words} />
              </div>
            ))}
          </div>
        </div>
      </div>
      {!atEnd.current && lines.length > 0 && (
        <button type="button" class="toend" onClick={toEnd}>
          {live ? "Follow the end" : "To the end"}
        </button>
      )}
    </div>
  );
}

function Marked({ text, words }: { text: string; words: string }) {
  const place = words === "" ? -1 : text.toLowerCase().indexOf(words.toLowerCase());
  if (place < 0) return <>{text || " "}</>;
  return (
    <>
      {text.slice(0, place)}
      <mark>{text.slice(place, place + words.length)}</mark>
      {text.slice(place + words.length)}
    </>
  );
}
