// Light or dark: follows the system until the reader chooses; the choice is remembered.
import { useEffect, useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";
const kKey = "lockstep-theme";
const kOrder: Theme[] = ["system", "light", "dark"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");

let chosen: Theme = remembered();
let printing = false;

function remembered(): Theme {
  try {
    const word = localStorage.getItem(kKey) as Theme | null;
    return word && kOrder.includes(word) ? word : "system";
  } catch {
    return "system"; // storage is off
  }
}

function apply(): void {
  const shown = printing ? "light" : chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = shown;
  window.dispatchEvent(new Event("lockstep-theme"));
}

export function startTheme(): void {
  dark.addEventListener("change", apply);
  window.addEventListener("beforeprint", () => {
    printing = true;
    apply();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    apply();
  });
  apply();
}

export function nextTheme(): void {
  chosen = kOrder[(kOrder.indexOf(chosen) + 1) % kOrder.length];
  try {
    localStorage.setItem(kKey, chosen);
  } catch {
    // Not remembered, then.
  }
  apply();
}

export function useTheme(): Theme {
  const [theme, setTheme] = useState(chosen);
  useEffect(() => {
    const changed = () => setTheme(chosen);
    window.addEventListener("lockstep-theme", changed);
    return () => window.removeEventListener("lockstep-theme", changed);
  }, []);
  return theme;
}

// What a canvas draws with: the value of a custom property as it is now.
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Called at once, and whenever the colours change.
export function useColours(draw: () => void): void {
  useEffect(() => {
    window.addEventListener("lockstep-theme", draw);
    return () => window.removeEventListener("lockstep-theme", draw);
  }, [draw]);
}
