// Charts of what the tables show, drawn when they come into view.
const pending = new Map();
const drawing = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    drawing.unobserve(entry.target);
    const draw = pending.get(entry.target);
    pending.delete(entry.target);
    if (draw) draw();
  }
}, { rootMargin: "300px" });

// The last request counts: a chart that is out of view is drawn once, when it is seen.
function whenSeen(element, draw) {
  pending.set(element, draw);
  drawing.unobserve(element);
  drawing.observe(element);
}

function chartConfig() {
  const [ink, muted, line, page] = ["ink", "muted", "line", "page"].map(theme.colour);
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null, font, view: { stroke: null },
    axis: { labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontSize: 11.5, titleFontWeight: 400, titlePadding: 8, labelFlush: true },
    legend: { labelColor: ink, labelFontSize: 11.5, orient: "bottom", columnPadding: 14, rowPadding: 4, offset: 8, direction: "horizontal", layout: { bottom: { anchor: "start", direction: "vertical", margin: 4 } } },
    point: { stroke: page },
  };
}

// 1, 2, 5, 10, .. where they are few, else powers of ten.
function marks(sets, field) {
  const values = Object.values(sets).flat().map((row) => row[field]).filter((value) => value > 0);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const steps = most / least > 200 ? [1] : [1, 2, 5];
  const found = [];
  for (let power = Math.floor(Math.log10(least)) - 1; power <= Math.log10(most) + 1; power += 1) {
    found.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(1))));
  }
  return found.filter((value) => value >= least / 1.3 && value <= most * 1.3);
}

// The values that logarithmic axes mark.
const MARKED = {
  length: { x: "tokens", y: "median_us" }, batch: { x: "batch", y: "median_us" }, share: { x: "bytes" }, position: { y: "error" },
};

async function draw(figure, kind, sets) {
  const target = figure.querySelector(".chart");
  figure.view?.finalize();
  figure.view = null;
  target.replaceChildren();
  if (!sets.rows.length) {
    target.append(el("p", {}, "Nothing to draw with these filters."));
    return;
  }
  const names = [...new Set(sets.rows.map((row) => row.solution))].sort();
  const quoted = (list) => JSON.stringify(list).slice(1, -1);
  const spec = JSON.parse(JSON.stringify(data.specs[kind])
    .replaceAll('"@solutions"', () => quoted(names))
    .replaceAll('"@colours"', () => quoted(names.map((name) => data.colours[name])))
    .replaceAll('"@x"', () => quoted(marks(sets, MARKED[kind].x)))
    .replaceAll('"@y"', () => quoted(marks(sets, MARKED[kind].y)))
    .replaceAll('"@muted"', () => JSON.stringify(theme.colour("muted"))));
  const config = chartConfig();
  const room = target.clientWidth - 64; // legends start where the plot does
  const columns = Math.max(1, Math.floor(room / 150));
  Object.assign(config.legend, { columns, labelLimit: room / columns - 34 });
  // Presets have longer names than solutions.
  const wide = Math.max(1, Math.floor(room / 190));
  for (const { encoding } of spec.layer) {
    if (encoding.shape) Object.assign(encoding.shape.legend, { columns: wide, labelLimit: room / wide - 24 });
  }
  // The expressions are interpreted, not compiled: the page's policy lets no text become code.
  const result = await vegaEmbed(target, { ...spec, datasets: sets }, { actions: false, renderer: "svg", ast: true, config });
  figure.view = result;
  figure.dataset.drawn = String(sets.rows.length);
  target.querySelector("svg")?.setAttribute("role", "img");
  target.querySelector("svg")?.setAttribute("aria-label", `${figure.querySelector("figcaption")?.textContent ?? "Error against position"}: ${sets.rows.length} points`);
}

function chartsOf(box) {
  const name = box.dataset.definition;
  const rows = data.charts[name];
  const select = box.querySelector("[data-device]");
  const weight = {};
  for (const row of rows) weight[row.device] = (weight[row.device] || 0) + (row.ranked ? 1000 : 1);
  const devices = Object.keys(weight).sort((a, b) => weight[b] - weight[a]);
  select.append(...devices.map((device) => el("option", {}, device)));
  select.closest("label").hidden = devices.length < 2;
  let seen = null;
  const redraw = () => {
    const mine = rows.filter((row) => row.device === select.value && (!seen || seen.has(row.row)));
    const hollow = mine.some((row) => !row.ranked) ? " Hollow points are not ranked." : "";
    box.querySelector("[data-caption]").textContent = `${mine.length} passed and timed traces of the table, on ${select.value || "no device"}; stale ones are left out.${hollow}`;
    const sets = {
      length: { rows: mine.filter((row) => row.tokens) }, batch: { rows: mine.filter((row) => row.batch) },
      share: { rows: mine.filter((row) => row.bytes && row.share), limit: [{ share: 1, text: "the bound" }] },
    };
    for (const figure of box.querySelectorAll("[data-chart]")) {
      // Where every row is one token, length is batch.
      const kind = figure.dataset.chart;
      figure.hidden = kind === "length" && sets.length.rows.length > 0 && sets.length.rows.every((row) => row.tokens === row.batch);
      if (!figure.hidden) whenSeen(figure, () => draw(figure, kind, sets[kind]));
    }
  };
  let timer = 0;
  document.addEventListener("filtered", (event) => {
    if (event.detail.definition !== name) return;
    seen = event.detail.seen;
    const device = event.detail.wanted.device;
    if (device && devices.includes(device)) select.value = device;
    clearTimeout(timer);
    timer = setTimeout(redraw, 150);
  });
  select.addEventListener("change", redraw);
  theme.listeners.push(redraw);
  redraw();
}

function profilesOf(box) {
  const entries = data.profiles[box.dataset.definition];
  if (!entries.length) {
    box.hidden = true;
    return;
  }
  const [workload, metric] = [box.querySelector("[data-workload]"), box.querySelector("[data-metric]")];
  const names = [...new Set(entries.map((entry) => entry.workload))];
  workload.append(...names.map((name) => el("option", { value: name }, `${name} (${entries.find((e) => e.workload === name).regime})`)));
  const band = (first, last) => (first === last ? String(first) : `${first}–${last}`);
  const figure = box.querySelector("figure");
  const redraw = () => {
    const mine = entries.filter((entry) => entry.workload === workload.value);
    const key = metric.value === "2" ? "relative_l2" : "worst_vector";
    const all = mine.flatMap((entry) => entry.buckets.map((bucket) => ({
      solution: entry.solution, output: entry.output, device: entry.device, line: `${entry.solution}|${entry.device}|${entry.output}`,
      position: band(bucket[0], bucket[1]), error: bucket[Number(metric.value)],
    })));
    const rows = all.filter((row) => row.error > 0);
    const wild = all.filter((row) => row.error === null).length;
    const exact = all.filter((row) => row.error === 0).length;
    const limits = [...new Set(mine.map((entry) => entry.budget[key]).filter(Boolean))];
    box.querySelector("[data-caption]").textContent = "The largest over sequences and heads, from gdnspec check --errors."
      + (exact ? ` ${exact} points without any error are not drawn.` : "") + (wild ? ` ${wild} points are not finite.` : "");
    const limit = limits.map((value) => ({ error: value, text: `budget ${figures.significant(value)}` }));
    whenSeen(figure, () => draw(figure, "position", { rows, limit }));
  };
  workload.addEventListener("change", redraw);
  metric.addEventListener("change", redraw);
  theme.listeners.push(redraw);
  redraw();
}
