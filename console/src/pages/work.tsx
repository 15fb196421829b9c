/** Sinks of an application and their transactions, its savepoints and its operations; without one, operations of the project. */
import { useState } from "preact/hooks";
import { get, remove, resource } from "../api/client";
import { administers, may, project } from "../api/session";
import type { Page, Savepoint } from "../api/types";
import { clipped } from "../model/format";
import { link } from "../router";
import { useData } from "../ui/data";
import { Age, Dialog, Problem } from "../ui/parts";
import type { View } from "./application";
import { Collections } from "./collections";
import { Operations } from "./operations";
import { Transactions } from "./transactions";

export default function Work({ application }: Partial<View>) {
  return (
    <>
      {application && <Transactions application={application} />}
      {application && <Savepoints name={application.name} />}
      <Operations name={application?.name} />
      {!application && administers() && <Collections />}
    </>
  );
}

function Savepoints({ name }: { name: string }) {
  const path = resource(project.value, "applications", name, "savepoints");
  const [deleting, setDeleting] = useState<Savepoint | null>(null);
  const data = useData(`savepoints ${path}`, (signal) => get<Page<Savepoint>>(path, { limit: 200 }, signal), (event) => event.application === name && ["savepoint", "operation"].includes(event.kind));
  const items = data.value?.items ?? [];
  return (
    <section class="card" aria-labelledby="savepoints-title">
      <h2 id="savepoints-title">Savepoints</h2>
      <Problem problem={data.problem} retry={data.reload} />
      {data.value && items.length === 0 && <p class="empty">No savepoints.</p>}
      {items.length > 0 && (
        <ul class="lines">
          {items.map((each) => (
            <li key={each.name}>
              <b>{each.name}</b>
              <a href={`${link("applications", name, "lineage")}?pick=${each.epoch}`}>epoch {each.epoch}</a>
              <span class="grow">
                <bdi>{clipped(each.message ?? "", 200)}</bdi>
              </span>
              <small>
                {each.created_by}, <Age at={each.created_at} />
              </small>
              {may("operator") && (
                <button type="button" onClick={() => setDeleting(each)}>
                  Delete<span class="hidden"> {each.name}</span>
                </button>
              )}
            </li>
          ))}
        </ul>
      )}
      {deleting && (
        <Dialog
          title={`Delete savepoint ${deleting.name}`}
          action="Delete"
          danger
          close={() => setDeleting(null)}
          onSubmit={async () => {
            await remove(`${path}/${encodeURIComponent(deleting.name)}`);
            data.reload();
          }}
        >
          <p>
            Epoch {deleting.epoch} then expires like others of its age. Forks of it keep the files that they need.
          </p>
        </Dialog>
      )}
    </section>
  );
}
