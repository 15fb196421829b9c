/** The clock of the control plane: ages stay right if the clock of this machine is wrong. */

/** `Date` has whole seconds, and a server updates it once per second. */
const GRAIN_MS = 2000;

export class ServerClock {
  private offset = 0;

  /** An answer with this `Date` was requested at `sent` and received at `got`, by the clock of this machine. */
  note(date: string | null, sent: number, got: number): void {
    const at = Date.parse(date ?? "");
    if (Number.isNaN(at)) return;
    // When the answer was written, its clock showed this second or the next one.
    const least = at - got;
    const most = at + GRAIN_MS - sent;
    if (this.offset < least || this.offset > most) this.offset = (least + most) / 2;
  }

  /** The time of the control plane, if this machine shows `local`. */
  at(local: number): number {
    return local + this.offset;
  }
}
