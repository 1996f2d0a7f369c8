// Elements from text: what a file holds is never read as HTML.
const data = JSON.parse(document.getElementById("data").textContent);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return made;
}

function command(text) {
  return el("div", { class: "command" }, el("pre", { tabindex: 0 }, el("code", {}, text)),
    el("button", { type: "button", "data-copy": "" }, "Copy"));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  let copied = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // no clipboard for a page from a disk: select it, and copy as the keyboard would
    getSelection().selectAllChildren(code);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

const figures = {
  four: (x) => (x >= 1000 ? Math.round(x).toLocaleString("en") : x >= 100 ? x.toFixed(1) : x.toFixed(2)),
  seconds(x) {
    if (x === null || x === undefined) return "";
    const sign = x < 0 ? "-" : "";
    const size = Math.abs(x);
    if (size >= 1) return `${sign}${size.toFixed(2)} s`;
    return sign + (size < 1e-3 ? `${figures.four(size * 1e6)} µs` : `${figures.four(size * 1e3)} ms`);
  },
  amount(x, unit) {
    const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const [size, letter] = steps.find(([least]) => x >= least) || [1, ""];
    return `${size === 1 ? x : (x / size).toPrecision(3)} ${letter}${unit}`;
  },
  significant: (x) => (x === null || x === undefined ? "not finite" : String(Number(x.toPrecision(3)))),
  percent(x) {
    if (!Number.isFinite(x)) return "∞";
    if (x >= 10) return x < 1e4 ? `${x.toFixed(0)}x` : `${x.toExponential(1)}x`;
    return `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`;
  },
};
