/** Light, dark, or as the system has it. */

import { Store } from "./store";

export type Theme = "system" | "light" | "dark";
const NAME = "standfast-theme";

const stored = localStorage.getItem(NAME);
export const theme = new Store<Theme>(stored === "light" || stored === "dark" ? stored : "system");

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme.value;
}

export function chooseTheme(chosen: Theme): void {
  localStorage.setItem(NAME, chosen);
  theme.set(chosen);
  applyTheme();
}
