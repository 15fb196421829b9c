/** Sources of artifacts. `null` while the API has no resource for them: pages then show hashes. */

export type Sources = Record<string, string>;

/** Texts of the files of an artifact, by path. */
export const readSources: ((sha256: string, signal: AbortSignal) => Promise<Sources>) | null = null as ((sha256: string, signal: AbortSignal) => Promise<Sources>) | null;
