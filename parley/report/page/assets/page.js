// Draws the charts from the page's own data; the tables tell the same without it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8a6fd1", "#7f7f7f"];
  const dashes = [[], [8, 4], [2, 3], [8, 3, 2, 3]];
  const whole = [1, 2, 5].flatMap((n) => [...Array(9).keys()].map((k) => n * 10 ** k)).sort((a, b) => a - b);
  const onPaper = { "--ink": "#000000", "--line": "#cccccc" };
  const words = { rounds: "round", megabytes: "megabytes, up and down", seconds: "seconds of training" };
  const rowsEach = Math.max(4, Math.min(12, Math.floor(1200 / data.groups.length)));
  const charts = {}, hidden = { curves: new Set(), clients: new Set() };
  let printing = false;

  const colour = (i) => colours[i % colours.length];
  const dash = (i) => dashes[Math.floor(i / colours.length) % dashes.length];
  const css = (name) => printing ? onPaper[name] : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const byId = (name) => document.getElementById(name);
  const isShare = (metric) => metric.endsWith("accuracy");

  // As in the tables, where halves are rounded to even.
  function percent(share) {
    const value = 100 * share, part = value - Math.floor(value);
    return (part === 0.125 || part === 0.625 ? value - 0.005 : value).toFixed(2) + "%";
  }

  // Four digits, as Python's "%.4g" writes them.
  function four(value) {
    const short = Number(value.toPrecision(4)), [digits, power] = short.toExponential().split("e");
    const far = Number(power) < -4 || Number(power) > 3;
    return far ? `${digits}e${power[0]}${power.slice(1).padStart(2, "0")}` : String(short);
  }

  const amount = (value) => Math.abs(value) < 9999.5 ? four(value) : Math.round(value).toLocaleString("en");
  const shown = (metric, value) => value == null ? "–" : isShare(metric) ? percent(value) : four(value);
  const tick = (metric, value) => value == null ? "" : isShare(metric) ? Number((100 * value).toFixed(2)) + "%" : four(value);

  function element(kind, content, attributes) {
    const made = document.createElement(kind);
    made.textContent = content;
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    return made;
  }

  function swatch(i) {
    const space = "http://www.w3.org/2000/svg", picture = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
    const all = { x1: 0, y1: 6, x2: 36, y2: 6, stroke: colour(i), "stroke-width": 3, "stroke-dasharray": dash(i).join(" ") };
    for (const [name, value] of Object.entries(all)) line.setAttribute(name, value);
    for (const [name, value] of Object.entries({ width: 36, height: 12, "aria-hidden": "true" })) picture.setAttribute(name, value);
    picture.append(line);
    return picture;
  }

  function axis(label, extra) {
    return Object.assign(
      { label, stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } }, extra);
  }

  function size(place) {
    if (printing) return { width: 680, height: 320 };
    return { width: Math.max(280, place.clientWidth), height: Math.min(460, Math.max(260, window.innerHeight * 0.55)) };
  }

  // Where the cursor is a curve has the value of its own nearest point, and none before its first or after its last.
  function nearest(u, i, at) {
    const values = u.data[i], places = u.data[0];
    let before = at, after = at;
    while (before >= 0 && values[before] == null) before--;
    while (after < values.length && values[after] == null) after++;
    if (before < 0 || after >= values.length) return null;
    return places[at] - places[before] <= places[after] - places[at] ? before : after;
  }

  // Points of one curve at the same place (a repeated number of megabytes) would confuse the join: the last one counts.
  function unique([x, y]) {
    const kept = new Map();
    x.forEach((at, k) => kept.set(at, y[k]));
    const xs = [...kept.keys()].sort((a, b) => a - b);
    return [xs, xs.map((at) => kept.get(at))];
  }

  // One chart: `lines` have the number of their group, places and values, perhaps with a band of seeds.
  function draw(name, lines, { across, metric, log, incrs, at }) {
    const place = byId(name), series = [{}], tables = [], bands = [], buttons = [];
    if (charts[name]) { charts[name].destroy(); delete charts[name]; }
    place.textContent = "";
    const fit = (values) => log ? values.map((v) => v > 0 ? v : null) : values;
    for (const line of lines) {
      const group = data.groups[line.group], stroke = colour(line.group), show = !hidden[name].has(group.label);
      line.at = series.length;
      series.push({ stroke, dash: dash(line.group), width: 2, show, spanGaps: true, points: { show: line.x.length < 3 } });
      tables.push([line.x, fit(line.mean)]);
      if (line.low) {
        for (const end of ["high", "low"]) {
          series.push({ stroke: stroke + "55", width: 1, show, spanGaps: true, points: { show: false } });
          tables.push([line.x, fit(line[end])]);
        }
        bands.push({ series: [line.at + 1, line.at + 2], fill: stroke + "22" });
      }
    }
    const range = (u, low, high) => low == null ? [0, 1] :
      uPlot.rangeNum(low, high, { min: { pad: 0.1, hard: Math.min(0, low) }, max: { pad: 0.1, hard: Math.max(1, high) } });
    const y = log ? { distr: 3, log: 10 } : isShare(metric) ? { range } : {};
    const upwards = axis(metric || "value", { size: 70, values: (u, ticks) => ticks.map((v) => tick(metric, v)) });
    const decades = (u, ticks) => ticks.map((v) => Number.isInteger(Math.log10(v)) ? v : null);
    if (log) for (const part of ["grid", "ticks"]) upwards[part].filter = decades;
    const plot = new uPlot(Object.assign({
      series, bands, scales: { x: { time: false }, y }, legend: { show: false }, focus: { alpha: 0.25 }, cursor: { dataIdx: nearest },
      axes: [axis(across, incrs ? { incrs } : {}), upwards],
      hooks: { setCursor: [(u) => tell(u)] },
    }, size(place)), uPlot.join(tables.map(unique)), place);
    charts[name] = plot;

    function tell(u) {
      const now = u.cursor.idx;
      where.textContent = now == null ? "" : at(u.data[0][now]);
      lines.forEach((line, k) => {
        const own = u.cursor.idxs[line.at];
        const elsewhere = own != null && own !== now ? ` (${at(u.data[0][own])})` : "";
        buttons[k].lastChild.textContent = now == null ? "" : shown(metric, own == null ? null : u.data[line.at][own]) + elsewhere;
      });
    }

    const legend = element("ul", "", { class: "legend", "aria-label": "Curves; press one to hide or show it" }), where = element("p", "", { class: "where" });
    for (const line of lines) {
      const group = data.groups[line.group], count = line.low ? 3 : 1;
      const button = element("button", "", { type: "button", "aria-pressed": String(!hidden[name].has(group.label)) });
      const lost = line.mean[line.mean.length - 1] == null && !group.note.includes("diverged");
      const note = [group.note, lost ? "diverged" : ""].filter(Boolean).join(", ");
      button.append(swatch(line.group), element("span", group.label + (note ? ` (${note})` : "")), element("span", "", { class: "value" }));
      button.addEventListener("click", () => {
        const show = hidden[name].has(group.label);
        if (show) hidden[name].delete(group.label); else hidden[name].add(group.label);
        button.setAttribute("aria-pressed", String(show));
        for (let k = 0; k < count; k++) plot.setSeries(line.at + k, { show });
      });
      for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => plot.setSeries(line.at, { focus: true }));
      for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => plot.setSeries(null, { focus: true }));
      const item = document.createElement("li");
      item.append(button);
      legend.append(item);
      buttons.push(button);
    }
    place.append(where, legend);
  }

  // The lines of a metric that was measured: each group's curve.
  function curvesOf(metric, against) {
    return data.groups.map((group, i) => [i, group.curves[metric]]).filter(([, curve]) => curve && curve.rounds.length)
      .map(([i, curve]) => ({ group: i, x: curve[against], mean: curve.mean, low: curve.low, high: curve.high }));
  }

  // Losses and the like whose values span decades.
  function spansDecades(metric) {
    const known = curvesOf(metric, "rounds").flatMap((line) => line.mean).filter((v) => v != null);
    const low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), 0);
    return !isShare(metric) && low > 0 && high >= 100 * low;
  }

  function drawCurves() {
    const place = byId("curves");
    if (!place) return;
    const metric = byId("metric").value, against = document.querySelector('input[name="axis"]:checked').value;
    const lines = curvesOf(metric, against);
    if (!lines.length) { place.textContent = "No run has measured this."; return; }
    const at = (x) => against === "rounds" ? `round ${x}` : `${amount(x)} ${against === "seconds" ? "s" : "MB"}`;
    draw("curves", lines, { across: words[against], metric, log: byId("log").checked, incrs: against === "rounds" ? whole : null, at });
  }

  // The table below the curves tells of the metric they show.
  function fillNumbers() {
    const metric = byId("metric").value, region = byId("numbers").firstElementChild, table = region.querySelector("table");
    const title = `${metric} along the rounds`, body = document.createElement("tbody");
    region.setAttribute("aria-label", title);
    table.caption.firstElementChild.textContent = title;
    table.tHead.rows[0].cells[2].textContent = metric;
    data.groups.forEach((group) => {
      const curve = group.curves[metric];
      if (!curve) return;
      const last = curve.rounds.length - 1, count = Math.min(rowsEach, last + 1), seen = new Set();
      for (let k = 0; k < count; k++) seen.add(Math.round((last * k) / Math.max(1, count - 1)));
      for (const k of seen) {
        const row = body.insertRow();
        row.append(element("th", group.label, { scope: "row" }));
        for (const cell of [String(curve.rounds[k]), curve.mean[k] == null ? "diverged" : shown(metric, curve.mean[k]), amount(curve.megabytes[k]), amount(curve.seconds[k])])
          row.append(element("td", cell, { class: "number" }));
      }
    });
    table.tBodies[0].replaceWith(body);
  }

  function drawClients() {
    const place = byId("clients");
    if (!place) return;
    const lines = data.groups.map((group, i) => ({ group: i, mean: group.clients, x: group.clients.map((_, k) => (100 * k) / (group.clients.length - 1)) }))
      .filter((line) => line.mean.length > 1);
    if (!lines.length) { place.parentElement.hidden = true; return; }
    draw("clients", lines, { across: "share of clients, %", metric: data.judged, at: (x) => `${four(x)}% of the clients below` });
  }

  function drawAll() { drawCurves(); drawClients(); }

  const choice = byId("metric");
  if (choice) {
    for (const name of data.metrics) choice.add(new Option(name, name, name === data.metric, name === data.metric));
    const log = byId("log");
    log.checked = spansDecades(data.metric);
    choice.addEventListener("change", () => { log.checked = spansDecades(choice.value); drawCurves(); fillNumbers(); });
    log.addEventListener("change", drawCurves);
    document.querySelectorAll('input[name="axis"]').forEach((input) => input.addEventListener("change", drawCurves));
    byId("all").addEventListener("click", () => { hidden.curves.clear(); drawCurves(); });
    byId("none").addEventListener("click", () => { data.groups.forEach((group) => hidden.curves.add(group.label)); drawCurves(); });
  }
  drawAll();
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => printing || drawAll(), 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Paper cannot be unfolded, and is white.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const one of folded) one.open = false;
    drawAll();
  });
  document.documentElement.dataset.drawn = String(Object.keys(charts).length);
})();
