import { render } from "preact";
import { useEffect } from "preact/hooks";
import { follow, liveState } from "./api/events";
import { get } from "./api/client";
import { may, project, resume, signOut, waiting, who } from "./api/session";
import type { Page } from "./api/types";
import { ApplicationPage } from "./pages/application";
import { Applications } from "./pages/applications";
import { Mark, SignIn } from "./pages/signin";
import { startPath } from "./model/start";
import { address, BASE, followLinks, link, navigate, route } from "./router";
import { useData } from "./ui/data";
import { lazy } from "./ui/lazy";
import { Loading, said } from "./ui/parts";
import { theme, toggleTheme } from "./ui/theme";

const Work = lazy<{ application?: never }>(() => import("./pages/work"), "operations");
const Audit = lazy<object>(() => import("./pages/audit"), "the audit log");
const Access = lazy<object>(() => import("./pages/access"), "the access page");
const Events = lazy<{ application?: never }>(() => import("./pages/events"), "events");

const LIVE = {
  live: "Live: the page follows the event stream.",
  connecting: "The event stream is being opened.",
  retrying: "The control plane does not answer, or its event stream ended. The page tries again.",
  off: "The event stream is closed.",
};

function Shell() {
  const [first = "applications", second] = route.value;
  useEffect(() => {
    document.title = [second, first === "applications" && second ? route.value[2] : first, "Epochal"].filter(Boolean).join(" · ");
  }, [route.value.join("/")]);
  if (who.value === undefined) return waiting.value ? <p class="loading" role="status">{LIVE.retrying}</p> : <Loading what="the session" />;
  if (who.value === null) return <SignIn />;
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={link()}>
          <Mark />
          <span>Epochal</span>
        </a>
        <Projects />
        <nav aria-label="Main">
          {[["applications", "Applications"], ["operations", "Operations"], ["events", "Events"], ...(may("admin") ? [["audit", "Audit"]] : []), ["access", "Access"]].map(([path, label]) => (
            <a key={path} href={link(path!)} aria-current={first === path ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        <span class="push" />
        <span class={`live ${liveState.value}`} title={LIVE[liveState.value]} role="status">
          <i aria-hidden="true" />
          <span>{liveState.value}</span>
        </span>
        <button type="button" class="icon" onClick={toggleTheme} aria-label={`Use the ${theme.value === "dark" ? "light" : "dark"} theme`}>
          <svg viewBox="0 0 20 20" aria-hidden="true">
            <path d="M10 2a8 8 0 1 0 0 16z" fill="currentColor" />
            <circle cx="10" cy="10" r="7.2" fill="none" stroke="currentColor" stroke-width="1.6" />
          </svg>
        </button>
        <button type="button" class="who" onClick={() => void signOut()} title={`Signed in as ${who.value.name}`}>
          Sign out
        </button>
      </header>
      <main id="content" tabIndex={-1}>
        {first === "applications" && second ? (
          <ApplicationPage key={`${project.value}/${second}`} name={second} />
        ) : first === "applications" ? (
          <Applications />
        ) : first === "operations" ? (
          <Work />
        ) : first === "audit" ? (
          <Audit />
        ) : first === "access" ? (
          <Access />
        ) : first === "events" ? (
          <Events />
        ) : (
          <p class="empty">This page does not exist. <a href={link("applications")}>Applications</a></p>
        )}
      </main>
      <div class="said" role="status">
        {said.value}
      </div>
    </>
  );
}

function Projects() {
  const data = useData("projects", (signal) => get<Page<{ name: string }>>("/v1/projects", { limit: 500 }, signal));
  const names = data.value?.items.map((each) => each.name) ?? [];
  if (!names.includes(project.value)) names.push(project.value);
  if (names.length < 2 && project.value === "default") return null;
  return (
    <label class="choice">
      <span class="hidden">Project</span>
      <select
        value={project.value}
        onChange={(event) => {
          const next = event.currentTarget.value;
          navigate(next === "default" ? `${BASE}/applications` : `${BASE}/projects/${encodeURIComponent(next)}/applications`);
        }}
      >
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

/** `/` goes to the search of the page. */
document.addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const search = document.querySelector<HTMLElement>("[data-search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});

followLinks();
// Before the event stream and the first page are read.
who.subscribe((now) => {
  const path = now ? startPath(BASE, address.peek().path, now.roles) : null;
  if (path !== null) navigate(`${path}${location.search}${location.hash}`, true);
});
follow();
void resume();
render(<Shell />, document.getElementById("root")!);
