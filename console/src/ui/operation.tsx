/** An operation that a view waits for. */
import { useEffect } from "preact/hooks";
import { get, post, resource } from "../api/client";
import { may, project } from "../api/session";
import type { Operation } from "../api/types";
import { duration } from "../model/format";
import { now, useData, type Data } from "./data";
import { Problem, say, State } from "./parts";

const POLL_MS = 1500;

/** Read an operation until it has ended. Its progress has no events. */
export function useOperation(id: string | null): Data<Operation | null> {
  const path = id === null ? null : resource(project.value, "operations", id);
  const data = useData(
    `operation ${path ?? ""}`,
    async (signal) => (path === null ? null : get<Operation>(path, {}, signal)),
    (event) => event.kind === "operation",
  );
  const running = data.value?.state === "running";
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(data.reload, POLL_MS);
    return () => clearInterval(timer);
  }, [running, path]);
  return data;
}

/** State, progress and error of an operation, which can be cancelled if `cancels`. `what` names it instead of its kind. */
export function OperationStatus({ data, cancels = false, what }: { data: Data<Operation | null>; cancels?: boolean; what?: string | undefined }) {
  const operation = data.value;
  if (!operation) return <Problem problem={data.problem} retry={data.reload} />;
  const end = operation.finished_at ? Date.parse(operation.finished_at) : now.value;
  return (
    <>
      <div class="title" role="status">
        <b>{what ?? operation.kind}</b>
        <State name={operation.state} />
        <span class="quiet">
          {operation.cancel_requested_at && operation.state === "running" ? "cancelling" : operation.progress} {duration(end - Date.parse(operation.created_at))}
        </span>
        {cancels && operation.state === "running" && !operation.cancel_requested_at && may("operator") && (
          <button
            type="button"
            onClick={() =>
              void post(`${resource(project.value, "operations", operation.id)}/cancel`).then(data.reload, (error: unknown) => say(String(error)))
            }
          >
            Cancel
          </button>
        )}
      </div>
      {operation.error && (
        <p class="notice bad" role="alert">
          {operation.error.detail}
        </p>
      )}
    </>
  );
}
