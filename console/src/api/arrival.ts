/**
 * What the page finds when it is opened: the code of a sign-in link, the fragment from before a login at the identity
 * provider, and why such a login failed.
 */

const KEPT = "epochal-fragment";
const REFUSED = "epochal-login-refused";

/** The code of a sign-in link. It leaves the address before anything else reads or shows it. */
export function takeCode(): string | null {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const code = fragment.get("code");
  if (code === null) return null;
  fragment.delete("code");
  const rest = fragment.toString();
  replaceFragment(rest ? `#${rest}` : "");
  return code;
}

/**
 * The address of a login at the identity provider that returns to this view. The fragment has keys, which must not be
 * sent to servers: this tab keeps it.
 */
export function loginAddress(): string {
  return `/v1/session/login?return_to=${encodeURIComponent(location.pathname + location.search)}`;
}

export function keepFragment(): void {
  try {
    if (location.hash) sessionStorage.setItem(KEPT, JSON.stringify([location.pathname + location.search, location.hash]));
    else sessionStorage.removeItem(KEPT);
  } catch {
    // A browser that stores nothing returns to the view without its fragment.
  }
}

/** Restore the fragment of the view to which a login returns. */
export function restoreFragment(): void {
  try {
    const kept = sessionStorage.getItem(KEPT);
    if (kept === null) return;
    sessionStorage.removeItem(KEPT);
    const [view, fragment] = JSON.parse(kept) as [string, string];
    if (view === location.pathname + location.search && !location.hash) replaceFragment(fragment);
  } catch {
    // Without storage, nothing was kept.
  }
}

/** Why a login at the identity provider failed: a cookie of the control plane, which is shown once. */
export function takeRefusal(): string | null {
  const cookie = document.cookie.split("; ").find((each) => each.startsWith(`${REFUSED}=`));
  if (cookie === undefined) return null;
  document.cookie = `${REFUSED}=; Path=/console/; Max-Age=0; SameSite=Lax`;
  try {
    return decodeURIComponent(cookie.slice(REFUSED.length + 1)) || null;
  } catch {
    return null;
  }
}

function replaceFragment(fragment: string): void {
  history.replaceState(history.state, "", `${location.pathname}${location.search}${fragment}`);
}
