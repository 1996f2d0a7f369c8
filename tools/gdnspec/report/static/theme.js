// Light or dark: the system's choice until the reader makes one.
"use strict";
const theme = {
  dark: matchMedia("(prefers-color-scheme: dark)"),
  button: document.getElementById("theme"),
  listeners: [],
  get now() {
    return document.documentElement.dataset.theme || (theme.dark.matches ? "dark" : "light");
  },
  // A colour of the style sheet, as a chart needs it.
  colour(name) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  },
  apply(chosen) {
    if (chosen) document.documentElement.dataset.theme = chosen;
    theme.button.textContent = theme.now === "dark" ? "☀" : "☾";
    theme.listeners.forEach((tell) => tell());
  },
};
// A page opened from a disk may have no storage.
try { theme.apply(localStorage.getItem("gdnspec-theme")); } catch { theme.apply(null); }
theme.button.addEventListener("click", () => {
  const next = theme.now === "dark" ? "light" : "dark";
  try { localStorage.setItem("gdnspec-theme", next); } catch { /* it holds for this visit */ }
  theme.apply(next);
});
theme.dark.addEventListener("change", () => theme.apply(null));
