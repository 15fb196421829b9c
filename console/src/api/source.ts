/** Sources of artifacts, which require the role operator. */
import { get, resource } from "./client";
import { project } from "./session";
import type { ArtifactSource, SourceFile } from "./types";

/** Texts of files, by path. */
export type Sources = Record<string, string>;

export async function readFiles(sha256: string, signal: AbortSignal): Promise<readonly SourceFile[]> {
  return (await get<ArtifactSource>(resource(project.value, "artifacts", sha256, "source"), {}, signal)).files;
}

/** Why a file has no text. */
export function reasonOf(file: SourceFile): string {
  return { not_text: "is not a text", too_large: "is too large", unreadable: "is damaged or compressed in an unusual way" }[file.omitted ?? "unreadable"];
}
