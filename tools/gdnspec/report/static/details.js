// What is behind a figure: the command, the environment, and every number of a trace or a verdict.
function pane(title, rows, wide) {
  const kept = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  if (!kept.length) return null;
  const list = el("dl");
  for (const [name, value] of kept) list.append(el("dt", {}, name), el("dd", {}, value));
  return el("div", { class: wide ? "wide" : null }, el("h4", {}, title), list);
}

function errorsPane(outputs) {
  if (!outputs || !outputs.length) return null;
  const body = el("tbody");
  for (const item of outputs) {
    for (const [metric, limit] of Object.entries(item.budget || {})) {
      const error = (item.errors || {})[metric];
      if (error === undefined) continue;
      const over = error === null ? Infinity : error / limit;
      body.append(el("tr", {}, el("td", {}, `${item.output}, ${metric}`), el("td", { class: "num" }, figures.significant(error)),
        el("td", { class: "num" }, figures.significant(limit)), el("td", { class: over > 1 ? "num bad" : "num" }, figures.percent(over))));
    }
  }
  const heads = ["error", "", "budget", "share"].map((text, i) => el("th", { scope: "col", class: i ? "num" : null }, text));
  const worst = outputs.filter((item) => item.worst).map((item) => {
    const at = item.worst;
    return el("p", { class: "fine" }, `${item.output} is worst at sequence, slot or checkpoint ${at.sequence}, head ${at.head}, token or row ${at.vector}, element ${at.element}: got ${at.got ?? "not finite"}, expected ${at.expected}`);
  });
  return el("div", {}, el("h4", {}, "Errors against budget"), el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body), ...worst);
}

const flat = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));

function environmentPane(place) {
  return pane("Environment", Object.entries(data.environments[place] || {}).map(([name, value]) => [name, value === null ? "" : flat(value)]));
}

function healthPane(title, health) {
  if (!health) return null;
  return pane(title, [
    ["SM clock", health.sm_mhz && `${health.sm_mhz} MHz`], ["memory clock", health.memory_mhz && `${health.memory_mhz} MHz`],
    ["temperature", health.temperature && `${health.temperature} °C`], ["power", health.power && `${health.power} W`],
    ["throttled by", (health.throttled_by || []).join(", ") || "nothing"], ["others on it", health.others || "none"],
  ]);
}

function timingPanes(trace) {
  const t = trace.timing;
  if (!t) return [];
  const w = t.witness || {};
  return [
    pane("Time of a call", [
      ["median", figures.seconds(t.median)], ["95% interval", t.interval.map(figures.seconds).join(" to ")],
      ["p10, p90", `${t.p10 > 0 ? figures.seconds(t.p10) : "below the clock"}, ${figures.seconds(t.p90)}`], ["samples", `${t.samples}, of ${t.calls} calls`],
      ["method", data.methods[t.method]], ["host", figures.seconds(t.host)], ["prepare", figures.seconds(t.prepare)],
    ]),
    pane("What holds it to account", [
      ["floor", t.floor !== undefined && `${figures.seconds(t.floor)}: nothing honest is faster`],
      ["bound", t.bound !== undefined && `${figures.seconds(t.bound)}, by ${t.bound_by}`],
      ["moved", `${figures.amount(t.bytes, "B")}, ${figures.amount(t.operations, "FLOP")}`],
      ["witness", `${figures.seconds(w.per_call)} a call by the parent's clock`],
      ["its windows", `${figures.seconds(w.once)} for ${w.calls} calls, ${figures.seconds(w.twice)} for ${2 * w.calls}`],
      ["ring", figures.amount(t.ring_bytes, "B")],
      ["verifying", `${figures.seconds(t.verification || 0)} beside ${figures.seconds(t.timed || 0)} timed`],
    ].map(([name, value]) => [name, value === false ? "" : value])),
  ];
}

function traceDetails(trace) {
  const c = trace.ceilings;
  const panes = [
    ...timingPanes(trace), errorsPane(trace.outputs),
    pane("Against", (trace.against || []).map((r) => [r.baseline, `${r.ratio.toFixed(3)}x (${r.interval.map((x) => x.toFixed(3)).join(" to ")}); ${figures.seconds(r.median)} by ${r.method}`])),
    pane("Measured rates", c ? [["copy", figures.amount(c.copy_bandwidth, "B/s")], ["bfloat16 products", figures.amount(c.matrix_rate, "FLOP/s")]] : []),
    healthPane("GPU before", trace.before), healthPane("GPU after", trace.after), environmentPane(trace.environment),
    pane("Question", [
      ["workload", trace.workload], ["suite", trace.suite], ["regime", trace.regime], ["lengths", trace.lengths],
      ["axes", Object.entries(trace.axes).map(([name, size]) => `${name} ${size}`).join(", ")], ["seed", trace.seed],
      ["recorded", trace.recorded], ["source", trace.source_hash.slice(0, 16)], ["definition", trace.definition_hash.slice(0, 16)],
    ]),
  ];
  return el("div", { class: "inside" },
    trace.stale ? el("p", { class: "message" }, `Stale: ${trace.stale}. Measure again.`) : null,
    trace.message ? el("p", { class: trace.status === "PASSED" ? "message" : "message failed" }, trace.message) : null,
    ...(trace.unclean || []).map((why) => el("p", { class: "message" }, `Unclean, so not ranked: ${why}`)),
    command(trace.command), el("div", { class: "panes" }, ...panes.filter(Boolean)));
}

function verdictDetails(verdict) {
  return el("div", { class: "inside" },
    verdict.message ? el("p", { class: verdict.status === "UNSUPPORTED" ? "message" : "message failed" }, verdict.message) : null,
    verdict.repeat ? command(verdict.repeat) : null,
    el("div", { class: "panes" }, ...[errorsPane(verdict.outputs), environmentPane(verdict.environment),
      pane("Run", [["seconds", verdict.seconds && verdict.seconds.toFixed(3)], ["suite", verdict.suite], ["device", verdict.device]])].filter(Boolean)));
}
