/** A page that is loaded when it is first shown. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading } from "./parts";

export function lazy<Props extends object>(
  load: () => Promise<{ default: ComponentType<Props> }>,
  what: string,
): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null;
  return function Lazy(props: Props) {
    const [, ready] = useState(0);
    const [failed, setFailed] = useState(false);
    useEffect(() => {
      if (loaded) return;
      load().then(
        (module) => {
          loaded = module.default;
          ready((count) => count + 1);
        },
        () => setFailed(true),
      );
    }, []);
    if (failed) {
      return (
        <div class="notice bad" role="alert">
          <p>A part of the console could not be loaded. It may have been updated.</p>
          <button type="button" onClick={() => location.reload()}>
            Load it again
          </button>
        </div>
      );
    }
    const Page = loaded;
    return Page ? <Page {...props} /> : <Loading what={what} />;
  };
}
