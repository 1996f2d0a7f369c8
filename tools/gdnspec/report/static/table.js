// Tables that sort and filter. Rows that are not ranked take no place in an order of speed: they stay last.
function sortValue(row, column, kind) {
  const cell = row.cells[column];
  const text = cell.dataset.v ?? cell.textContent.trim();
  if (text === "") return null;
  if (kind === "text") return text.toLowerCase();
  const number = text === "inf" || text === "∞" ? Infinity : Number(text);
  if (!Number.isNaN(number)) return number;
  const leading = /^-?[\d.]+(e[+-]?\d+)?/.exec(text);
  return kind === "mixed" && !leading ? text.toLowerCase() : leading ? Number(leading[0]) : null;
}

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b || 0;
  return typeof a === "number" ? -1 : 1;
}

function sortable(table) {
  const body = table.tBodies[0];
  const first = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const put = (rows) => body.append(...rows.flatMap((row) => (row.detail ? [row, row.detail] : [row])));
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const next = was === "ascending" ? "descending" : was === "descending" ? null : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (!next) return put(first);
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const speed = "speed" in head.dataset;
      const keyed = first.map((row, place) => {
        const value = sortValue(row, column, head.dataset.kind);
        const state = row.dataset.state;
        const last = (state === "stale" ? 4 : 0) + (speed && state && !("ranked" in row.dataset) ? 2 : 0) + (value === null ? 1 : 0);
        return { row, place, value, last };
      });
      keyed.sort((a, b) => a.last - b.last || (a.value === null ? 0 : sign * compare(a.value, b.value)) || a.place - b.place);
      put(keyed.map((item) => item.row));
    });
  });
}

function filterable(box) {
  const rows = [...box.querySelectorAll("tbody tr.row")];
  const search = box.querySelector("[data-search]");
  const choices = [...box.querySelectorAll("[data-filter]")];
  const count = box.querySelector("[data-count]");
  const reset = box.querySelector("[data-reset]");
  let texts = null;
  const apply = () => {
    texts ??= rows.map((row) => row.textContent.toLowerCase());
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = choices.filter((choice) => choice.value).map((choice) => [choice.dataset.filter, choice.value]);
    const seen = new Set();
    rows.forEach((row, i) => {
      const fits = words.every((word) => texts[i].includes(word)) && wanted.every(([name, value]) => row.dataset[name] === value);
      row.hidden = !fits;
      if (row.detail) row.detail.hidden = !fits;
      if (fits) seen.add(Number(row.dataset.row));
    });
    const filtered = words.length > 0 || wanted.length > 0;
    count.textContent = filtered ? `${seen.size} of ${rows.length}` : `${rows.length} traces`;
    reset.hidden = !filtered;
    box.querySelector(".nothing").hidden = seen.size > 0;
    document.dispatchEvent(new CustomEvent("filtered", { detail: { definition: box.dataset.definition, seen, wanted: Object.fromEntries(wanted) } }));
  };
  search.addEventListener("input", apply);
  choices.forEach((choice) => choice.addEventListener("change", apply));
  reset.addEventListener("click", () => {
    search.value = "";
    choices.forEach((choice) => { choice.value = ""; });
    apply();
    search.focus();
  });
  apply();
}

function expandable(box) {
  const scroll = box.querySelector(".scroll");
  const toggle = (row) => {
    const button = row.querySelector(".open");
    if (row.detail) {
      row.detail.remove();
      row.detail = null;
    } else {
      const cell = el("td", { colspan: row.cells.length }, traceDetails(data.traces[row.dataset.row]));
      cell.style.setProperty("--seen", `${scroll.clientWidth}px`);
      row.detail = el("tr", { class: "detail" }, cell);
      row.after(row.detail);
    }
    button.setAttribute("aria-expanded", String(Boolean(row.detail)));
  };
  box.querySelector("tbody").addEventListener("click", (event) => {
    const row = event.target.closest("tr.row");
    if (!row || event.target.closest("a")) return;
    if (!getSelection().isCollapsed && !event.target.closest("button")) return; // text is being selected
    toggle(row);
  });
}
