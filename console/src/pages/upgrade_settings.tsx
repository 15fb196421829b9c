/** Settings of a proposed version, a row each, with problems of the control plane at the row that they name. */
import { useId, useState } from "preact/hooks";
import { isNamed, pairOf } from "../model/settings";

export interface SettingsProblem {
  text: string;
  /** Null if it is about several settings. */
  setting: string | null;
}

interface Props {
  lines: readonly string[];
  /** Names that can be set, with their current values. */
  current: Map<string, string>;
  problem: SettingsProblem | null;
  change: (lines: string[]) => void;
}

export function SettingsFields({ lines, current, problem, change }: Props) {
  const [adding, setAdding] = useState(false);
  const id = useId();
  const named = problem !== null && lines.some((line) => isNamed(line, problem.setting));
  const replace = (index: number, line: string | null) => {
    const next = [...lines];
    next.splice(index, 1, ...(line === null ? [] : [line]));
    change(next);
  };
  const add = (name: string) => {
    setAdding(false);
    if (name) change([...lines, `${name}=`]);
  };
  return (
    <fieldset class="choices">
      <legend>Settings</legend>
      <datalist id={`${id}names`}>
        {[...current].map(([name, value]) => (
          <option key={name} value={name} label={`${name}, now ${value}`} />
        ))}
      </datalist>
      {lines.length === 0 && !adding && <p class="caption quiet">The settings of the latest version stay as they are.</p>}
      {lines.map((line, index) => {
        const [name, value] = pairOf(line);
        const wrong = problem !== null && isNamed(line, problem.setting);
        return (
          <div key={`${index} ${name}`} class="setting">
            <label class="field">
              <span>{name}</span>
              <input
                autoFocus={value === ""}
                value={value}
                spellcheck={false}
                aria-invalid={wrong}
                aria-describedby={`${id}about${index}`}
                onChange={(event) => replace(index, `${name}=${event.currentTarget.value.trim()}`)}
              />
            </label>
            <button type="button" onClick={() => replace(index, null)}>
              Remove<span class="hidden"> {name}</span>
            </button>
            <small id={`${id}about${index}`} class={wrong ? "badtext" : ""} role={wrong ? "alert" : undefined}>
              {wrong ? problem.text.replace(/^configuration\.[\w.-]+: /, "") : current.has(name) ? `Now ${current.get(name)}` : "Not a setting of the latest version"}
            </small>
          </div>
        );
      })}
      {problem && !named && <p class="notice bad" role="alert">{problem.text}</p>}
      {adding ? (
        <label class="field">
          <span>Name of the setting</span>
          <input
            autoFocus
            list={`${id}names`}
            spellcheck={false}
            onChange={(event) => add(event.currentTarget.value.trim())}
            onKeyDown={(event) => event.key === "Escape" && setAdding(false)}
          />
          <small>A name of the list, parallelisms.OPERATOR, or an option of Spark such as spark.executor.memory</small>
        </label>
      ) : (
        <div>
          <button type="button" onClick={() => setAdding(true)}>
            Add a setting
          </button>
        </div>
      )}
    </fieldset>
  );
}
