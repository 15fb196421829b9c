/** The tree of snapshots as git draws it: branches of applications, savepoints, forks, rollbacks. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, resource } from "../api/client";
import { project } from "../api/session";
import type { Application, Page } from "../api/types";
import { curl, epochal, literal, python } from "../model/commands";
import { count } from "../model/format";
import { keyOf, matches, nameOf, type Item } from "../model/lineage";
import { address, choose } from "../router";
import { useData } from "../ui/data";
import { CopyAs, Loading, Problem, say, VirtualList } from "../ui/parts";
import type { View } from "./application";
import { DiffView } from "./diff";
import { useLineage } from "./lineage_data";
import { Row, spoken } from "./lineage_row";
import { SnapshotCard } from "./snapshot";

const ZOOMS = [
  { label: "overview", fold: true, row: 28 },
  { label: "folded", fold: true, row: 46 },
  { label: "every epoch", fold: false, row: 46 },
];

const listed = (name: string) => address.value.query.getAll(name).flatMap((each) => each.split(",")).filter(Boolean);

export default function LineagePage({ application, reload }: View) {
  const name = application.name;
  const others = listed("with").filter((each) => each !== name).slice(0, 49);
  const most = others.length > 0 ? 1 : 2;
  const level = Math.min(most, Math.max(0, Number(address.value.query.get("zoom") ?? 1)));
  const zoom = ZOOMS[level]!;
  const data = useLineage(name, others, zoom.fold);
  const { tree, drawing } = data;
  const nodes = tree?.nodes ?? [];
  const narrow = useNarrow();
  const [words, setWords] = useState("");
  const [cursor, setCursor] = useState(-1);
  const reveal = useMemo(() => signal(-1), []);
  const picked = listed("pick").slice(0, 2);
  const pickedNodes = picked.map((each) => nodes.find((node) => nameOf(node, name) === each));
  const one = picked.length === 1 ? pickedNodes[0] : undefined;

  const pick = (node: Item) => {
    const own = nameOf(node, name);
    const next = picked.includes(own) ? picked.filter((each) => each !== own) : [...picked.slice(-1), own];
    choose({ pick: next.length > 0 ? next.join(",") : null });
  };
  const edgeOf = (node: Item) => drawing.edges.get(keyOf(node));
  const matching = words ? nodes.flatMap((node, index) => (matches(node, edgeOf(node)?.kind, words) ? [index] : [])) : [];
  const found = new Set(matching);
  const move = (index: number) => {
    const next = Math.max(0, Math.min(nodes.length - 1, index));
    setCursor(next);
    reveal.value = -1;
    reveal.value = next;
  };
  const next = (step: number) => {
    if (matching.length === 0) return;
    move(step > 0 ? (matching.find((index) => index > cursor) ?? matching[0]!) : ([...matching].reverse().find((index) => index < cursor) ?? matching.at(-1)!));
  };
  const open = async (run: Item, around?: number) => {
    try {
      await data.open(run, around);
    } catch (error) {
      say((error as Error).message);
    }
  };
  // Rows of another list have other indexes.
  useEffect(() => {
    reveal.value = -1;
    setCursor(-1);
  }, [zoom.fold]);
  // An epoch that is folded is shown by opening its run; `?around=` also in a link.
  const around = Number(address.value.query.get("around") ?? 0);
  const target = around > 0 ? data.find(name, around) : undefined;
  useEffect(() => {
    if (target) void open(target, around);
  }, [target && !target.partial ? keyOf(target) : "", around]);
  useEffect(() => {
    const index = around > 0 ? nodes.findIndex((node) => node.epochs === 1 && node.application === name && node.epoch === around) : -1;
    if (index >= 0) move(index);
  }, [around, data.opened, tree !== null]);
  const submit = (step: number) => {
    const number = Number(words.replaceAll(",", ""));
    if (Number.isInteger(number) && number > 0 && data.find(name, number)) choose({ around: String(number) });
    else next(step);
  };

  const keys = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
    const step = steps[event.key];
    const at = nodes[cursor];
    if (step !== undefined) move(cursor + step);
    else if ((event.key === " " || event.key === "Enter") && at) pick(at);
    else if (event.key === "o" && at && at.epochs > 1) void open(at);
    else if (event.key === "n" || event.key === "N") next(event.key === "n" ? 1 : -1);
    else if (event.key === "+" && level < most) choose({ zoom: String(level + 1) });
    else if (event.key === "-" && level > 0) choose({ zoom: String(level - 1) });
    else if (event.key === "Escape" && picked.length > 0) choose({ pick: null });
    else return;
    event.preventDefault();
  };
  const height = narrow && level > 0 ? 56 : zoom.row;
  return (
    <>
      <header class="title tools">
        <input
          type="search"
          data-search
          aria-label="Find snapshots"
          placeholder="Epoch, tag, savepoint, message"
          value={words}
          onInput={(event) => {
            setWords(event.currentTarget.value);
            setCursor(-1);
          }}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            submit(event.shiftKey ? -1 : 1);
          }}
        />
        {words && <span class="quiet">{matching.length === 0 ? "nothing found" : `${count(matching.length, "row")} found`}</span>}
        <span class="push" />
        {data.opened > 0 && (
          <button type="button" onClick={() => { choose({ around: null }); data.fold(); }}>
            Fold again
          </button>
        )}
        <div class="group" role="group" aria-label="Zoom">
          <button type="button" aria-label="Zoom out" disabled={level === 0} onClick={() => choose({ zoom: String(level - 1) })}>
            −
          </button>
          <span class="level">{zoom.label}</span>
          <button type="button" aria-label="Zoom in" disabled={level === most} onClick={() => choose({ zoom: String(level + 1) })}>
            +
          </button>
        </div>
        <CopyAs
          commands={() => ({
            cli: picked.length === 2 ? epochal(project.value, "diff", name, ...picked) : epochal(project.value, "lineage", name),
            curl: curl(data.path, { fold: zoom.fold }),
            python: python(project.value, picked.length === 2 ? `client.application(${literal(name)}).snapshots.diff(${picked.map(literal).join(", ")})` : others.length > 0 ? `client.applications.lineages(${literal([name, ...others])})` : `client.application(${literal(name)}).lineage(fold=${zoom.fold ? "True" : "False"})`),
          })}
        />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!tree && !data.problem && <Loading what="the lineage" />}
      {tree && nodes.length === 0 && <p class="empty">No snapshot yet: the first epoch makes one.</p>}
      {nodes.length > 0 && (
        <section class="card flush" aria-label="Snapshots">
          <div class="strands">
            {drawing.strands.map((strand) => (
              <button key={strand.application} type="button" class={`strand c${strand.colour}`} onClick={() => move(strand.row)} title={`Go to the newest snapshot of ${strand.application}`}>
                <i aria-hidden="true" />
                <span>{strand.application}</span>
              </button>
            ))}
            {drawing.rows.some((_, index) => drawing.tips[index] && drawing.line(keyOf(nodes[index]!)).left) && (
              <span class="strand quiet">
                <svg width="22" height="10" aria-hidden="true"><path d="M1 5H21" class="lane left" /></svg>
                left by a rollback
              </span>
            )}
            <Others own={name} shown={drawing.strands.map((strand) => strand.application)} others={others} />
          </div>
          <VirtualList
            key={String(zoom.fold)}
            class={`lineage ${level === 0 ? "dense" : ""} ${picked.length > 0 ? "short" : ""}`}
            label="Snapshots, newest first. Arrow keys move, space picks a snapshot, o opens folded epochs."
            count={nodes.length}
            rowHeight={height}
            reveal={reveal}
            onEnd={() => void data.more()}
            onKeyDown={keys}
            render={(index) => {
              const node = nodes[index]!;
              return (
                <Row
                  key={keyOf(node)}
                  node={node}
                  index={index}
                  drawing={drawing}
                  height={height}
                  narrow={narrow}
                  pick={picked.indexOf(nameOf(node, name)) + 1}
                  current={index === cursor}
                  dimmed={words !== "" && !found.has(index)}
                  choose={() => {
                    setCursor(index);
                    pick(node);
                  }}
                  open={() => void open(node)}
                />
              );
            }}
          />
          <p class="hidden" role="status">{nodes[cursor] ? spoken(nodes[cursor]!, edgeOf(nodes[cursor]!)) : ""}</p>
        </section>
      )}
      {nodes.length > 0 && picked.length === 0 && (
        <p class="quiet caption">Pick one snapshot to fork from it, roll back, tag or export it; pick two to see what differs.</p>
      )}
      {one && <SnapshotCard key={keyOf(one)} application={application} node={one} edge={edgeOf(one)} done={() => { data.reload(); reload(); }} />}
      {picked.length === 2 && <DiffView name={name} from={picked[0]!} to={picked[1]!} swap={() => choose({ pick: `${picked[1]},${picked[0]}` })} clear={() => choose({ pick: null })} />}
    </>
  );
}

/** Adds other applications to the drawing, or removes them. */
function Others({ own, shown, others }: { own: string; shown: string[]; others: string[] }) {
  const path = resource(project.value, "applications");
  const data = useData(`names ${path}`, (signal) => get<Page<Application>>(path, { limit: 200 }, signal));
  const rest = (data.value?.items ?? []).map((each) => each.name).filter((each) => each !== own && !shown.includes(each) && !others.includes(each));
  return (
    <>
      <span class="push" />
      {others.map((each) => (
        <button key={each} type="button" class="strand" onClick={() => choose({ with: others.filter((other) => other !== each).join(",") || null })}>
          Hide {each}
        </button>
      ))}
      {rest.length > 0 && (
        <select aria-label="Show another application" value="" onChange={(event) => choose({ with: [...others, event.currentTarget.value].join(",") })}>
          <option value="">Add an application</option>
          {rest.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      )}
    </>
  );
}

function useNarrow(): boolean {
  const query = useMemo(() => matchMedia("(max-width: 700px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const change = () => setNarrow(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return narrow;
}
