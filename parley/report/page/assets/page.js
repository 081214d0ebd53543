// Draws the charts from the page's own data; the tables tell the same without it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8a6fd1", "#7f7f7f"];
  const dashes = [[], [8, 4], [2, 3], [8, 3, 2, 3]];
  const colour = (i) => colours[i % colours.length];
  const dash = (i) => dashes[Math.floor(i / colours.length) % dashes.length];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const byId = (name) => document.getElementById(name);
  const isShare = (metric) => metric.endsWith("accuracy");
  const shown = (metric) => (value) =>
    value == null ? "–" : isShare(metric) ? (100 * value).toFixed(2) + "%" : Number(value.toPrecision(4)).toString();
  const tick = (metric) => (value) => isShare(metric) ? Number((100 * value).toFixed(2)) + "%" : shown("")(value);
  const words = { rounds: "round", megabytes: "megabytes, up and down", seconds: "seconds of training" };
  const hidden = new Set();
  const charts = {};

  function axis(label, extra) {
    return Object.assign(
      { label, stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } }, extra);
  }

  function size(place) {
    return { width: Math.max(280, place.clientWidth), height: Math.min(460, Math.max(260, window.innerHeight * 0.55)) };
  }

  function draw(name, options, values) {
    const place = byId(name);
    if (!place) return;
    if (charts[name]) charts[name].destroy();
    charts[name] = new uPlot(Object.assign(options, size(place)), values, place);
  }

  function drawCurves() {
    const place = byId("curves");
    if (!place) return;
    const metric = byId("metric").value;
    const against = document.querySelector('input[name="axis"]:checked').value;
    const tables = [], series = [{ label: words[against] }], bands = [];
    data.groups.forEach((group, i) => {
      const curve = group.curves[metric];
      if (!curve || !curve.rounds.length) return;
      const show = !hidden.has(group.label), stroke = colour(i);
      const value = (u, v) => shown(metric)(v);
      series.push({ label: group.label, stroke, dash: dash(i), width: 2, show, spanGaps: true, value, points: { show: curve.rounds.length < 3 } });
      tables.push([curve[against], curve.mean]);
      if (curve.low) {
        const at = series.length;
        for (const end of ["high", "low"]) {
          series.push({ label: `${group.label} (${end === "high" ? "highest" : "lowest"} seed)`, class: "band", stroke: stroke + "55", width: 1, show, spanGaps: true, value, points: { show: false } });
          tables.push([curve[against], curve[end]]);
        }
        bands.push({ series: [at, at + 1], fill: stroke + "22" });
      }
    });
    if (!tables.length) { place.textContent = "No run has measured this."; return; }
    // Points of one curve at the same place (a repeated number of megabytes) would confuse the join: the last one counts.
    const unique = tables.map(([x, y]) => {
      const kept = new Map();
      x.forEach((at, k) => kept.set(at, y[k]));
      const xs = [...kept.keys()].sort((a, b) => a - b);
      return [xs, xs.map((at) => kept.get(at))];
    });
    draw("curves", {
      series, bands, scales: { x: { time: false } },
      axes: [axis(words[against]), axis(metric, { size: 70, values: (u, ticks) => ticks.map(tick(metric)) })],
      hooks: { setSeries: [(u, i, change) => { if (i && change.show !== undefined) follow(u, i, change.show); }] },
    }, uPlot.join(unique));
  }

  // A run's band comes and goes with its curve.
  function follow(u, i, show) {
    if (u.series[i].class === "band") return;
    if (show) hidden.delete(u.series[i].label); else hidden.add(u.series[i].label);
    for (let k = i + 1; k < u.series.length && u.series[k].class === "band"; k++) u.setSeries(k, { show });
  }

  function drawClients() {
    const groups = data.groups.filter((group) => group.clients.length > 1);
    if (!groups.length) { const place = byId("clients"); if (place) place.parentElement.hidden = true; return; }
    const tables = groups.map((group) => {
      const n = group.clients.length - 1;
      return [group.clients.map((_, k) => (100 * k) / n), group.clients];
    });
    const series = [{ label: "clients below, %" }];
    groups.forEach((group) => {
      const i = data.groups.indexOf(group);
      series.push({ label: group.label, stroke: colour(i), dash: dash(i), width: 2, spanGaps: true, value: (u, v) => shown(data.judged)(v), points: { show: false } });
    });
    draw("clients", { series, scales: { x: { time: false } }, axes: [axis("share of clients, %"), axis(data.judged || "value", { size: 70, values: (u, ticks) => ticks.map(tick(data.judged)) })] }, uPlot.join(tables));
  }

  function drawAll() { drawCurves(); drawClients(); }

  const choice = byId("metric");
  if (choice) {
    for (const name of data.metrics) choice.add(new Option(name, name, name === data.metric, name === data.metric));
    choice.addEventListener("change", drawCurves);
    document.querySelectorAll('input[name="axis"]').forEach((input) => input.addEventListener("change", drawCurves));
    byId("all").addEventListener("click", () => { hidden.clear(); drawCurves(); });
    byId("none").addEventListener("click", () => { data.groups.forEach((group) => hidden.add(group.label)); drawCurves(); });
  }
  drawAll();
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.drawn = String(Object.keys(charts).length);
})();
