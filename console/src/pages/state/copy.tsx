/** Commands for what is shown of a key: its value, its history, its last change. */
import { useState } from "preact/hooks";
import { questionCommands, type Looked, type Question } from "../../model/commands";
import { Copyable, Dialog } from "../../ui/parts";

const QUESTIONS: [Question, string][] = [
  ["value", "Value"],
  ["history", "History"],
  ["blame", "Last change"],
];

export function CopyKey({ asked }: { asked: Looked }) {
  const [open, setOpen] = useState(false);
  const [question, setQuestion] = useState<Question>("value");
  const commands = open ? questionCommands(question, asked) : null;
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Copy as command
      </button>
      {commands && (
        <Dialog title="The same outside of the console" close={() => setOpen(false)} wide>
          <fieldset class="questions">
            <legend class="hidden">What to copy</legend>
            {QUESTIONS.map(([name, label]) => (
              <label key={name} class="choice">
                <input type="radio" name="question" value={name} checked={question === name} onChange={() => setQuestion(name)} />
                {label}
              </label>
            ))}
          </fieldset>
          <Copyable title="Command line" text={commands.cli} />
          <Copyable title="curl" text={commands.curl} />
          <Copyable title="Python" text={commands.python} />
        </Dialog>
      )}
    </>
  );
}
