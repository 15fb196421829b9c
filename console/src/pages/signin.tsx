import { useEffect, useState } from "preact/hooks";
import { keepFragment, loginAddress } from "../api/arrival";
import { ended, provider, readMethods, signIn } from "../api/session";
import { address } from "../router";

export function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => void readMethods(), []);
  address.value; // the login returns to the view that is open now
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await signIn(token.trim());
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  return (
    <main class="signin" id="content" tabIndex={-1}>
      <form onSubmit={submit}>
        <Mark />
        <h1>Sign in to Epochal</h1>
        {ended.value && <p class="notice">{ended.value}</p>}
        {provider.value && (
          <a class="button" href={loginAddress()} onClick={keepFragment}>
            Sign in with {provider.value}
          </a>
        )}
        <label class="field">
          <span>Access token</span>
          <input
            type="password"
            name="token"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
          <small>
            A new control plane writes the first token to <code>admin.token</code> in its home folder. An administrator
            creates others with <code>epochal tokens create</code>. <code>epochal console --open</code> signs in without a
            token.
          </small>
        </label>
        {problem && (
          <div class="notice bad" role="alert">
            <p>{problem}</p>
          </div>
        )}
        <button type="submit" class="primary" disabled={busy}>
          {busy ? "Signing in" : "Sign in"}
        </button>
      </form>
    </main>
  );
}

/** The sign of Epochal: epochs on a line, and a branch. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 28 28" aria-hidden="true">
      <path d="M7 25V3M7 18c0-6 13-4 13-11" fill="none" stroke="currentColor" stroke-width="2.5" stroke-linecap="round" />
      <circle cx="7" cy="18" r="3.5" />
      <circle cx="7" cy="6" r="3.5" />
      <circle cx="20" cy="7" r="3.5" class="other" />
    </svg>
  );
}
