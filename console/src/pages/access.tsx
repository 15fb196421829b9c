/** Who has access: the caller with its roles and sessions; for administrators, the tokens of the project and all sessions. */
import { useRef, useState } from "preact/hooks";
import { get, post, remove, resource } from "../api/client";
import { administers, may, project, signOut, who } from "../api/session";
import type { NewToken, Page, Role, Session, Token } from "../api/types";
import { curl, epochal, python } from "../model/commands";
import { moment } from "../model/format";
import { link } from "../router";
import { now, useData } from "../ui/data";
import { Age, Copyable, CopyAs, Dialog, Facts, Field, Loading, Problem, say } from "../ui/parts";
import { NAME } from "./application";

const LIMIT = 500;

export default function Access() {
  return (
    <>
      <header class="title">
        <h1>Access</h1>
      </header>
      <Caller />
      <Sessions />
      {may("admin") && <Tokens />}
    </>
  );
}

function Caller() {
  const roles = Object.entries(who.value?.roles ?? {}).sort();
  return (
    <section class="card" aria-labelledby="caller-title">
      <header class="title">
        <h2 id="caller-title">
          <bdi>{who.value?.name}</bdi> <small>signed in</small>
        </h2>
        <span class="push" />
        <CopyAs commands={() => ({ cli: epochal("default", "sessions", "list"), curl: curl("/v1/session"), python: python("default", "client.projects.list()") })} />
      </header>
      <Facts items={roles.length > 0 ? roles.map(([name, role]): [string, string] => [name, `${role}: ${MAY[role]}`]) : [["Roles", "none"]]} />
      {administers() && <p class="quiet">An administrator of the project default administers the installation and every project.</p>}
    </section>
  );
}

const MAY: Record<Role, string> = {
  viewer: "reads everything except tokens and the audit log",
  operator: "also starts, stops, restores and rescales applications",
  author: "also uploads and runs code",
  admin: "also manages access, and decides transactions",
};

function Sessions() {
  const [ending, setEnding] = useState<Session | null>(null);
  const data = useData("sessions", (signal) => get<Page<Session>>("/v1/sessions", { limit: LIMIT }, signal));
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="sessions-title">
      <header class="title">
        <h2 id="sessions-title">{administers() ? "Sessions of everyone" : "Your sessions"}</h2>
        <span class="push" />
        <CopyAs commands={() => ({ cli: epochal("default", "sessions", "list"), curl: curl("/v1/sessions"), python: python("default", "client.sessions.list()") })} />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="sessions" />}
      {data.value && items.length === 0 && <p class="empty">No session: this page uses the token itself.</p>}
      {items.length > 0 && (
        <div class="scroll tall" tabIndex={0} role="group" aria-label="Sessions">
          <table>
            <thead>
              <tr>
                <th scope="col">Caller</th>
                <th scope="col">Address</th>
                <th scope="col">Begun</th>
                <th scope="col">Last used</th>
                <th scope="col">Ends</th>
                <th scope="col"><span class="hidden">Action</span></th>
              </tr>
            </thead>
            <tbody>
              {items.map((each) => (
                <tr key={each.id}>
                  <td>
                    <b><bdi>{each.name}</bdi></b> <small>{each.person ? "person" : "token"}</small> {each.current && <i class="mark head">this session</i>}
                  </td>
                  <td>{each.address ?? "unknown"}</td>
                  <td class="nowrap"><Age at={each.created_at} /></td>
                  <td class="nowrap"><Age at={each.last_used_at} /></td>
                  <td class="nowrap">{moment(each.expires_at)}</td>
                  <td>
                    <button type="button" onClick={() => setEnding(each)}>
                      End<span class="hidden"> the session of {each.name} from {moment(each.created_at)}</span>
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {ending && (
        <Dialog
          title={`End a session of ${ending.name}`}
          action="End the session"
          danger
          close={() => setEnding(null)}
          onSubmit={async () => {
            if (ending.current) return signOut();
            await remove(`/v1/sessions/${encodeURIComponent(ending.id)}`);
            say("The session has ended.");
            data.reload();
          }}
        >
          <p>
            {ending.current ? "You are signed out of this browser." : `The browser at ${ending.address ?? "an unknown address"} is signed out, within three seconds at every control plane.`}{" "}
            The {ending.person ? "person" : "token"} can sign in again.
          </p>
        </Dialog>
      )}
    </section>
  );
}

function Tokens() {
  const path = resource(project.value, "tokens");
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Token | null>(null);
  const [rotating, setRotating] = useState<Token | null>(null);
  const data = useData(`tokens ${path}`, (signal) => get<Page<Token>>(path, { limit: LIMIT }, signal));
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="tokens-title">
      <header class="title">
        <h2 id="tokens-title">
          Tokens <small>of the project {project.value}</small>
        </h2>
        <span class="push" />
        <button type="button" class="primary" onClick={() => setCreating(true)}>
          Create a token
        </button>
        <CopyAs commands={() => ({ cli: epochal(project.value, "tokens", "list"), curl: curl(path), python: python(project.value, "client.tokens.list()") })} />
      </header>
      <Problem problem={data.problem} retry={data.reload} />
      {!data.value && !data.problem && <Loading what="tokens" />}
      {data.value && items.length === 0 && <p class="empty">No tokens.</p>}
      {items.length > 0 && (
        <div class="scroll tall" tabIndex={0} role="group" aria-label="Tokens">
          <table>
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Role</th>
                <th scope="col">Created</th>
                <th scope="col">Expires</th>
                <th scope="col"><span class="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {items.map((each) => (
                <tr key={each.id}>
                  <td>
                    <b><bdi>{each.name}</bdi></b> <a class="under" href={`${link("audit")}?token=${encodeURIComponent(each.name)}`}>calls</a>
                  </td>
                  <td>{Object.entries(each.roles ?? {}).map(([name, role]) => (name === project.value ? role : `${role} in ${name}`)).join(", ")}</td>
                  <td class="nowrap"><Age at={each.created_at} /></td>
                  <td class="nowrap">
                    {each.expires_at === null ? "never" : Date.parse(each.expires_at) < now.value ? <span class="badtext">expired {moment(each.expires_at)}</span> : moment(each.expires_at)}
                  </td>
                  <td class="nowrap">
                    <button type="button" class="inline" onClick={() => setRotating(each)}>
                      replace<span class="hidden"> {each.name}</span>
                    </button>{" "}
                    <button type="button" class="inline" onClick={() => setRevoking(each)}>
                      revoke<span class="hidden"> {each.name}</span>
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="caption quiet">People have roles by their groups at the identity provider, in the settings of the control plane.</p>
      {creating && <CreateDialog path={path} close={() => { setCreating(false); data.reload(); }} />}
      {rotating && <RotateDialog path={path} token={rotating} close={() => { setRotating(null); data.reload(); }} />}
      {revoking && (
        <Dialog
          title={`Revoke ${revoking.name}`}
          action="Revoke"
          danger
          close={() => setRevoking(null)}
          onSubmit={async () => {
            await remove(`${path}/${encodeURIComponent(revoking.id)}`);
            say(`${revoking.name} is revoked.`);
            data.reload();
          }}
        >
          <p>
            Programs that use it, and its sessions, are refused immediately by this control plane, and within seconds by
            others. A revoked token cannot be restored.
            {revoking.name === who.value?.name && " It has your own name: it may be the token with which you are signed in."}
          </p>
        </Dialog>
      )}
    </section>
  );
}

const ROLES: Role[] = ["viewer", "operator", "author", "admin"];

function CreateDialog({ path, close }: { path: string; close: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [days, setDays] = useState("90");
  const [made, setMade] = useState<NewToken | null>(null);
  const done = useRef(false);
  if (made) return <SecretDialog made={made} close={close} />;
  return (
    <Dialog
      key="create"
      title="Create a token"
      action="Create"
      close={() => {
        if (!done.current) close();
      }}
      onSubmit={async () => {
        const expires_at = days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null;
        const answer = await post<NewToken>(path, { name, role, expires_at });
        done.current = true;
        setMade(answer);
      }}
    >
      <Field label="Name" hint="Lower-case letters, digits and hyphens">
        <input required pattern={NAME} value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <Field label={`Role in ${project.value}`} hint={`It ${MAY[role]}.`}>
        <select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>
          {ROLES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </Field>
      <Field label="Lifetime in days" hint="Empty: unlimited">
        <input type="number" min={1} max={36500} value={days} onInput={(event) => setDays(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

function RotateDialog({ path, token, close }: { path: string; token: Token; close: () => void }) {
  const [made, setMade] = useState<NewToken | null>(null);
  const done = useRef(false);
  if (made) return <SecretDialog made={made} close={close} />;
  return (
    <Dialog
      key="rotate"
      danger
      title={`Replace ${token.name}`}
      action="Replace"
      close={() => {
        if (!done.current) close();
      }}
      onSubmit={async () => {
        const answer = await post<NewToken>(`${path}/${encodeURIComponent(token.id)}/rotate`, {});
        done.current = true;
        setMade(answer);
      }}
    >
      <p>A new token of the same name, role and expiry is created, and this one is revoked with its sessions.</p>
    </Dialog>
  );
}

/** The only time that a token is shown. */
function SecretDialog({ made, close }: { made: NewToken; close: () => void }) {
  return (
    <Dialog key="secret" title={`Token ${made.name}`} close={close} wide>
      <p>Store it now: it is not shown again. The control plane has only its hash.</p>
      <div class="secret">
        <Copyable title="Token" text={made.token ?? ""} />
      </div>
    </Dialog>
  );
}
