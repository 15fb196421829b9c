/** Parts that several pages use. Texts are always children, never markup. */
import type { ComponentChildren, JSX } from "preact";
import { signal, type Signal } from "@preact/signals";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { ProblemError } from "../api/client";
import type { Failure } from "../api/types";
import { age, moment } from "../model/format";
import type { Commands } from "../model/commands";
import { now } from "./data";

export function Age({ at }: { at: string }) {
  return (
    <time dateTime={at} title={moment(at)}>
      {age(at, now.value)}
    </time>
  );
}

const TONES: Record<string, string> = {
  running: "good", committed: "good", succeeded: "good", live: "good",
  failed: "bad", aborted: "bad", lost: "bad", blocked: "bad",
  paused: "busy", reading: "busy",
  starting: "busy", stopping: "busy", started: "busy", prepared: "busy", retrying: "busy", connecting: "busy",
};

export function State({ name }: { name: string }) {
  return (
    <span class={`state ${TONES[name] ?? "calm"}`}>
      <i aria-hidden="true" />
      {name}
    </span>
  );
}

export function Problem({ problem, retry }: { problem: ProblemError | null; retry?: () => void }) {
  if (!problem) return null;
  return (
    <div class="notice bad" role="alert">
      <p>{problem.message}</p>
      {problem.request && <p class="quiet">Request {problem.request}</p>}
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function FailureNotice({ failure, title }: { failure: Failure; title: string }) {
  return (
    <div class="notice bad">
      <p>
        <strong>{title}</strong> <code>{failure.type}</code>
        {failure.step && <span> at step {failure.step}</span>}
      </p>
      <p class="message">{failure.message}</p>
      {failure.traceback && (
        <details open>
          <summary>Traceback of the pipeline's code</summary>
          <pre tabIndex={0}>{failure.traceback}</pre>
        </details>
      )}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Reading {what}
    </p>
  );
}

export function Field(props: { label: string; children: ComponentChildren; hint?: string }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function Facts({ items }: { items: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A modal dialog, closed by Escape. `onSubmit` runs the action; its error is shown, and the dialog stays open. */
export function Dialog(props: {
  title: string;
  children: ComponentChildren;
  close: () => void;
  action?: string;
  danger?: boolean;
  disabled?: boolean;
  onSubmit?: () => Promise<void>;
  wide?: boolean;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const title = useId();
  useEffect(() => {
    element.current?.showModal();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!props.onSubmit || busy || props.disabled) return;
    setBusy(true);
    setProblem(null);
    try {
      await props.onSubmit();
      props.close();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <dialog ref={element} class={props.wide ? "wide" : ""} aria-labelledby={title} onClose={props.close}>
      <form onSubmit={submit}>
        <h2 id={title}>{props.title}</h2>
        <div class="body">{props.children}</div>
        {problem && (
          <div class="notice bad" role="alert">
            <p>{problem}</p>
          </div>
        )}
        <div class="buttons">
          <button type="button" onClick={() => element.current?.close()}>
            {props.onSubmit ? "Cancel" : "Close"}
          </button>
          {props.onSubmit && (
            <button type="submit" class={props.danger ? "danger" : "primary"} disabled={busy || props.disabled}>
              {busy ? "Working" : props.action}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}

/** A short message after an action, read out by screen readers. */
export const said = signal("");
let silence: ReturnType<typeof setTimeout> | undefined;
export function say(text: string): void {
  said.value = text;
  clearTimeout(silence);
  silence = setTimeout(() => {
    said.value = "";
  }, 6000);
}

async function copy(text: string, from: HTMLElement | null): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    // Without TLS, a browser offers the clipboard only on loopback: select the text instead.
    if (from) getSelection()?.selectAllChildren(from);
    say("Selected. Copy it with the keyboard.");
  }
}

export function Copyable({ title, text }: { title: string; text: string }) {
  const element = useRef<HTMLPreElement>(null);
  return (
    <section class="copyable">
      <h3>{title}</h3>
      <pre ref={element} tabIndex={0}>
        {text}
      </pre>
      <button type="button" onClick={() => void copy(text, element.current)}>
        Copy<span class="hidden"> {title}</span>
      </button>
    </section>
  );
}

export function CopyAs({ commands }: { commands: () => Commands }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Copy as command
      </button>
      {open && <CopyDialog commands={commands()} close={() => setOpen(false)} />}
    </>
  );
}

function CopyDialog({ commands, close }: { commands: Commands; close: () => void }) {
  return (
    <Dialog title="The same outside of the console" close={close} wide>
      <Copyable title="Command line" text={commands.cli} />
      <Copyable title="curl" text={commands.curl} />
      <Copyable title="Python" text={commands.python} />
    </Dialog>
  );
}

/** Rows of one height in a scrolling box, of which only the visible ones are in the document. */
export function VirtualList(props: {
  count: number;
  rowHeight: number;
  label: string;
  render: (index: number) => ComponentChildren;
  reveal?: Signal<number>;
  onEnd?: () => void;
  class?: string;
  onKeyDown?: (event: JSX.TargetedKeyboardEvent<HTMLDivElement>) => void;
}) {
  const element = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const { count, rowHeight } = props;
  const measure = () => {
    const box = element.current;
    if (!box) return;
    setView({ top: box.scrollTop, height: box.clientHeight });
    if (box.scrollTop + box.clientHeight > box.scrollHeight - rowHeight * 5) props.onEnd?.();
  };
  useEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, [count, rowHeight]);
  useEffect(
    () =>
      props.reveal?.subscribe((index) => {
        const box = element.current;
        if (!box || index < 0) return;
        const top = index * rowHeight;
        if (top < box.scrollTop) box.scrollTop = top;
        else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
      }),
    [rowHeight],
  );
  const first = Math.max(0, Math.floor(view.top / rowHeight) - 6);
  const last = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + 6);
  const rows = [];
  for (let index = first; index < last; index += 1) rows.push(props.render(index));
  return (
    <div
      ref={element}
      class={`virtual ${props.class ?? ""}`}
      role="group"
      aria-label={props.label}
      tabIndex={0}
      onScroll={measure}
      onKeyDown={props.onKeyDown}
    >
      <div style={{ height: `${count * rowHeight}px`, position: "relative" }}>
        <div style={{ position: "absolute", left: 0, right: 0, top: `${first * rowHeight}px` }}>{rows}</div>
      </div>
    </div>
  );
}

/** Heights of the latest epochs as bars; the text says the same. */
export function Sparkline({ values, label, bad = [] }: { values: number[]; label: string; bad?: boolean[] }) {
  const most = Math.max(...values, 1);
  const width = 4;
  return (
    <svg class="spark" viewBox={`0 0 ${Math.max(values.length, 20) * width} 20`} role="img" aria-label={label}>
      <title>{label}</title>
      {values.map((value, index) => {
        const height = Math.max(1.5, (value / most) * 20);
        return <rect key={index} class={bad[index] ? "bad" : ""} x={index * width} y={20 - height} width={width - 1} height={height} />;
      })}
    </svg>
  );
}
