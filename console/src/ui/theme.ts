/** Light or dark: as the system, until the user chooses. */
import { signal } from "@preact/signals";

export type Theme = "light" | "dark";

const system = matchMedia("(prefers-color-scheme: dark)");
const STORED = "epochal.theme";

function initial(): Theme {
  try {
    const chosen = localStorage.getItem(STORED);
    if (chosen === "light" || chosen === "dark") return chosen;
  } catch {
    // The browser refuses storage.
  }
  return system.matches ? "dark" : "light";
}

export const theme = signal<Theme>(initial());
theme.subscribe((now) => {
  document.documentElement.dataset.theme = now;
});
system.addEventListener("change", () => {
  theme.value = initial();
});

export function toggleTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(STORED, theme.value);
  } catch {
    // It lasts until the page is closed.
  }
}
