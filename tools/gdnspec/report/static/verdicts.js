// A cell of the table of regimes opens to its verdicts, failures first.
function verdictsOf(box) {
  const panel = box.querySelector("[data-panel]");
  const order = (verdict) => (verdict.status === "PASSED" ? 1 : verdict.status === "UNSUPPORTED" ? 2 : 0);
  box.querySelector("table").addEventListener("click", (event) => {
    const button = event.target.closest("[data-verdicts]");
    if (!button) return;
    const open = button.getAttribute("aria-expanded") === "true";
    box.querySelectorAll('[aria-expanded="true"]').forEach((other) => other.setAttribute("aria-expanded", "false"));
    panel.hidden = open;
    panel.replaceChildren();
    if (open) return;
    button.setAttribute("aria-expanded", "true");
    const mine = button.dataset.verdicts.split(" ").map((place) => data.verdicts[place]).sort((a, b) => order(a) - order(b));
    panel.append(el("b", {}, button.getAttribute("aria-label")));
    for (const verdict of mine) {
      const kind = ["failed", "passed", "unsupported"][order(verdict)];
      const item = el("details", { class: "verdict" }, el("summary", {}, el("span", { class: `status ${kind}` }, verdict.status), ` ${verdict.workload}`));
      item.addEventListener("toggle", () => {
        if (item.open && item.children.length === 1) item.append(verdictDetails(verdict));
      });
      panel.append(item);
    }
    panel.scrollIntoView({ block: "nearest" });
  });
}
