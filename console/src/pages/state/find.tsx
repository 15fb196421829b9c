/** Fields of a key. Every value can be given: an empty text, null, and texts with line breaks. */
import type { Column } from "../../api/types";
import type { Given } from "../../model/keys";

export function Fields(props: { columns: Column[]; optional: number; given: Given[]; change: (given: Given[]) => void; submit: () => void }) {
  const { columns, given, change } = props;
  const set = (index: number, value: Given) => change(given.map((each, position) => (position === index ? value : each)));
  return (
    <>
      {columns.map((column, index) => (
        <FieldOf
          key={column.name}
          column={column}
          first={index === 0}
          optional={index >= columns.length - props.optional}
          value={given[index]}
          set={(value) => set(index, value)}
          submit={props.submit}
        />
      ))}
    </>
  );
}

function FieldOf(props: { column: Column; first: boolean; optional: boolean; value: Given; set: (value: Given) => void; submit: () => void }) {
  const { column, value, set } = props;
  const isText = column.type === "string";
  const special = value === null ? "null" : value === "" ? "empty" : "value";
  const shared = {
    value: value ?? "",
    disabled: special !== "value",
    "aria-label": column.name,
    ...(props.first ? { "data-search": true } : {}),
  };
  return (
    <div class="field keyfield">
      <span>
        <bdi>{column.name}</bdi> <code>{column.type}</code>
        {props.optional && <small>optional</small>}
      </span>
      <div>
        {isText ? (
          <textarea
            {...shared}
            rows={1}
            onInput={(event) => set(event.currentTarget.value || undefined)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
              event.preventDefault();
              props.submit();
            }}
          />
        ) : (
          <input {...shared} onInput={(event) => set(event.currentTarget.value || undefined)} />
        )}
        <select
          aria-label={`${column.name}: a value or null`}
          value={special}
          onChange={(event) => set(event.currentTarget.value === "null" ? null : event.currentTarget.value === "empty" ? "" : undefined)}
        >
          <option value="value">value</option>
          {isText && <option value="empty">empty text</option>}
          <option value="null">null</option>
        </select>
      </div>
    </div>
  );
}
