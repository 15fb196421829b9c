/** Addresses of the views: paths below `/console/`, like those of the API; `?epoch=` and other choices; keys in the fragment. */
import { computed, effect, signal } from "@preact/signals";
import { project } from "./api/session";

export const BASE = "/console";

interface Address {
  path: string;
  query: URLSearchParams;
  fragment: URLSearchParams;
}

function current(): Address {
  return {
    path: location.pathname.replace(/\/+$/, "") || BASE,
    query: new URLSearchParams(location.search),
    fragment: new URLSearchParams(location.hash.slice(1)),
  };
}

export const address = signal(current());

/** Segments after `/console`, without `projects/{project}`. */
export const route = computed(() => {
  const segments = address.value.path.slice(BASE.length).split("/").filter(Boolean).map(decodeURIComponent);
  return segments[0] === "projects" && segments[1] ? segments.slice(2) : segments;
});

effect(() => {
  const [first, second] = address.value.path.slice(BASE.length).split("/").filter(Boolean);
  project.value = first === "projects" && second ? decodeURIComponent(second) : "default";
});

export function link(...segments: string[]): string {
  const prefix = project.value === "default" ? BASE : `${BASE}/projects/${encodeURIComponent(project.value)}`;
  return [prefix, ...segments.map(encodeURIComponent)].join("/");
}

export function navigate(url: string, replace = false): void {
  const before = location.pathname;
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  address.value = current();
  if (location.pathname !== before) {
    scrollTo(0, 0);
    document.getElementById("content")?.focus({ preventScroll: true });
  }
}

/** Change choices of the address; null removes one. */
export function choose(query: Record<string, string | null>, fragment?: Record<string, string | null>): void {
  const { path, query: before, fragment: beforeFragment } = address.value;
  const next = changed(before, query);
  const hash = changed(beforeFragment, fragment ?? {});
  navigate(`${path}${next ? `?${next}` : ""}${hash ? `#${hash}` : ""}`, true);
}

function changed(before: URLSearchParams, changes: Record<string, string | null>): string {
  const next = new URLSearchParams(before);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) next.delete(name);
    else next.set(name, value);
  }
  return next.toString();
}

/** Links of the console change the view without loading the page again. Call once. */
export function followLinks(): void {
  addEventListener("popstate", () => {
    address.value = current();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const anchor = (event.target as Element).closest("a");
    if (!anchor || anchor.target || anchor.origin !== location.origin || anchor.hasAttribute("download")) return;
    if (anchor.pathname !== BASE && !anchor.pathname.startsWith(`${BASE}/`)) return;
    if (anchor.getAttribute("href")?.startsWith("#")) return;
    event.preventDefault();
    navigate(anchor.href);
  });
}
