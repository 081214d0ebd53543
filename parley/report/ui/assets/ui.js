"use strict";
// Follows the store. Whatever a run says is put into the page as text, never as markup.
const chosen = new Set();
let known = [];
let groups = [];
let shown = "";

const byId = (id) => document.getElementById(id);

const element = (tag, content, attributes = {}) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
};

const reportOf = (ids) => "/report?" + ids.map((id) => "run=" + encodeURIComponent(id)).join("&");

const box = (label, ids) => {
  const made = element("input", [], { type: "checkbox", "aria-label": "choose " + label });
  made.dataset.ids = JSON.stringify(ids);
  made.addEventListener("change", () => {
    for (const id of ids) {
      if (made.checked) chosen.add(id);
      else chosen.delete(id);
    }
    offer();
  });
  return made;
};

const result = (line) =>
  element("td", [element("span", line.metric, { class: "metric" }), " ", element("span", line.result, { class: "value" })]);

const row = (run) => {
  const link = element("a", run.id, { href: reportOf([run.id]), target: "_blank", rel: "noopener" });
  const done = run.rounds === null ? String(run.round) : run.round + " of " + run.rounds;
  const rounds = [done + " "];
  if (run.status === "running" && run.rounds) {
    rounds.push(element("progress", done, { max: run.rounds, value: run.round, "aria-label": "rounds of " + run.id }));
  }
  const seed = run.seed === null ? "" : String(run.seed);
  const brief = (seed && "seed " + seed + ", ") + run.status + ", " + done;
  return element("tr", [
    element("td", box(run.id, [run.id])),
    element("th", [link, element("span", brief, { class: "brief" })], { scope: "row" }),
    element("td", seed, { class: "number roomy" }), element("td", run.status, { class: run.status + " roomy" }),
    element("td", rounds, { class: "roomy" }), result(run), element("td", run.megabytes, { class: "number" }),
    element("td", run.begun, { class: "roomy" }),
  ], { class: run.group === null ? "alone" : "one" });
};

const heading = (group, runs) => {
  const title = [group.title, element("span", group.done, { class: "brief" })];
  return element("tr", [
    element("td", box(group.title, runs.map((run) => run.id))), element("th", title, { scope: "row" }),
    element("td", [], { class: "roomy" }), element("td", group.done, { class: "roomy" }),
    element("td", [], { class: "roomy" }), result(group), element("td", group.megabytes, { class: "number" }),
    element("td", [], { class: "roomy" }),
  ], { class: "seeds" });
};

const wanted = () => {
  const words = byId("filter").value.toLowerCase().trim();
  const says = (run) => [run.id, run.name, run.status, run.seed === null ? "" : "seed " + run.seed].join(" ").toLowerCase();
  return known.filter((run) => says(run).includes(words));
};

const count = (number, what = "run") => number + " " + what + (number === 1 ? "" : "s");

const offer = () => {
  for (const one of document.querySelectorAll("#runs input")) {
    const ids = JSON.parse(one.dataset.ids);
    const some = ids.filter((id) => chosen.has(id)).length;
    one.checked = some === ids.length;
    one.indeterminate = some > 0 && some < ids.length;
  }
  const visible = new Set(wanted().map((run) => run.id));
  const hidden = [...chosen].filter((id) => !visible.has(id)).length;
  byId("chosen").disabled = byId("none").disabled = chosen.size === 0;
  byId("chosen").textContent = chosen.size === 0 ? "Report of the chosen runs"
    : "Report of " + count(chosen.size, "chosen run") + (hidden ? " (" + hidden + " not shown)" : "");
};

const draw = () => {
  const some = wanted();
  const state = JSON.stringify([some, groups]);
  if (state !== shown) {
    shown = state;
    const focused = document.activeElement?.getAttribute("aria-label");
    const rows = [];
    some.forEach((run, place) => {
      if (run.group !== null && run.group !== some[place - 1]?.group) {
        rows.push(heading(groups[run.group], some.filter((other) => other.group === run.group)));
      }
      rows.push(row(run));
    });
    if (known.length && !some.length) rows.push(element("tr", element("td", "No run matches.", { colspan: "8" })));
    byId("runs").replaceChildren(...rows);
    if (focused) document.querySelector("[aria-label=" + CSS.escape(focused) + "]")?.focus();
  }
  offer();
};

const say = (sentence) => {
  const place = byId("said");
  if (place.textContent !== sentence) place.textContent = sentence;
};

const tell = (note) => {
  const running = known.filter((run) => run.status === "running").length;
  const some = wanted().length;
  say(note || count(known.length) + ", " + running + " running" + (some === known.length ? "" : "; " + some + " shown"));
};

const follow = async () => {
  try {
    const answer = await fetch("/runs.json");
    if (!answer.ok) throw new Error(await answer.text());
    const found = await answer.json();
    known = found.runs;
    groups = found.groups;
    const ids = new Set(known.map((run) => run.id));
    for (const id of chosen) if (!ids.has(id)) chosen.delete(id);
    draw();
    tell(found.note);
    document.body.dataset.rows = String(known.length);
  } catch (error) {
    say("The store cannot be followed: " + (error instanceof TypeError ? "parley ui has ended." : error.message));
  }
  setTimeout(follow, 2000);
};

byId("filter").addEventListener("input", () => {
  draw();
  if (known.length) tell("");
});
byId("chosen").addEventListener("click", () => {
  window.open(reportOf([...chosen]), "_blank", "noopener");
});
byId("none").addEventListener("click", () => {
  chosen.clear();
  offer();
});
follow();
