// The button for light and dark; theme.js has applied the choice before anything was drawn.

import { $ } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

function show() {
  const chosen = document.documentElement.dataset.theme ?? "auto";
  $("theme").textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[chosen];
  return chosen;
}

export function setUp(recolour) {
  show();
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(show()) + 1) % THEMES.length];
    if (next === "auto") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("weir-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("weir-theme", next);
    }
    show();
    recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}
