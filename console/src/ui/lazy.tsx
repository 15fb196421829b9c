/** A page that is loaded when it is first shown. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading } from "./parts";

/** The control plane may have ended for a while: a part is loaded again without a click, too. */
const RETRY_MS = 5000;

export function lazy<Props extends object>(
  load: () => Promise<{ default: ComponentType<Props> }>,
  what: string,
): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null;
  return function Lazy(props: Props) {
    const [, ready] = useState(0);
    const [failures, setFailures] = useState(0);
    const [loading, setLoading] = useState(false);
    const begin = (visibly = true) => {
      if (loaded) return;
      setLoading(visibly);
      load()
        .then(
          (module) => {
            loaded = module.default;
            ready((count) => count + 1);
          },
          () => setFailures((count) => count + 1),
        )
        .finally(() => setLoading(false));
    };
    useEffect(() => begin(), []);
    useEffect(() => {
      if (failures === 0 || loaded) return;
      const timer = setTimeout(() => begin(false), RETRY_MS);
      return () => clearTimeout(timer);
    }, [failures]);
    if (failures > 0 && !loaded && !loading) {
      // An updated console has other files: only the page itself names them.
      return (
        <div class="notice bad" role="alert">
          <p>{failures === 1 ? `A part of the console, ${what}, could not be loaded.` : "A part of the console still cannot be loaded. The console may have been updated."}</p>
          <button type="button" onClick={failures === 1 ? () => begin() : () => location.reload()}>
            {failures === 1 ? "Try again" : "Load the console again"}
          </button>
        </div>
      );
    }
    const Page = loaded;
    return Page ? <Page {...props} /> : <Loading what={what} />;
  };
}
