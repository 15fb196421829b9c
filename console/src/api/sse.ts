/** Server-sent events: the parser, without input and output. */

export interface ServerEvent {
  id: string;
  kind: string;
  data: string;
}

/** Collects chunks of a stream, and returns the events that are complete. */
export class EventParser {
  private rest = "";

  push(chunk: string): ServerEvent[] {
    const blocks = (this.rest + chunk).split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.map(parsed).filter((event): event is ServerEvent => event !== null);
  }
}

function parsed(block: string): ServerEvent | null {
  const event: ServerEvent = { id: "", kind: "message", data: "" };
  const lines: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment, or no field
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "id") event.id = value;
    else if (field === "event") event.kind = value;
    else if (field === "data") lines.push(value);
  }
  event.data = lines.join("\n");
  return lines.length === 0 ? null : event;
}
