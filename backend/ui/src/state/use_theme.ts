/** Dark or light: what the system says until somebody chooses. */
import { useEffect, useState } from "react";
import type { Theme } from "../core/palette";

const KEY = "flameherd-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function read(): Theme {
  const chosen = localStorage.getItem(KEY);
  return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light";
}

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(read);
  useEffect(() => {
    const follow = (): void => setTheme(read());
    system.addEventListener("change", follow);
    return () => system.removeEventListener("change", follow);
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const toggle = (): void => {
    const next: Theme = theme === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, next);
    setTheme(next);
  };
  return [theme, toggle];
}
