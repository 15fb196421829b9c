/** The project with which the console starts. */

/**
 * The path to open instead of `path`, or `null`: without a role in `default`, a caller starts on the first project, by
 * name, in which they have one. A path that names a project or an application stays as it is.
 */
export function startPath(base: string, path: string, roles: Readonly<Record<string, unknown>>): string | null {
  const [first = "applications", ...more] = path.slice(base.length).split("/").filter(Boolean);
  if (first === "projects" || more.length > 0 || "default" in roles) return null;
  const [project] = Object.keys(roles).sort();
  return project === undefined ? null : `${base}/projects/${encodeURIComponent(project)}/${first}`;
}
