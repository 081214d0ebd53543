"use strict";
// Follows the store. Whatever a run says is put into the page as text, never as markup.
const chosen = new Set();
let known = [];
let shown = "";

const element = (tag, content, attributes = {}) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
};

const reportOf = (ids) => "/report?" + ids.map((id) => "run=" + encodeURIComponent(id)).join("&");

const row = (run) => {
  const box = element("input", [], { type: "checkbox", "aria-label": "choose " + run.id });
  box.checked = chosen.has(run.id);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    offer();
  });
  const link = element("a", run.id, { href: reportOf([run.id]), target: "_blank", rel: "noopener" });
  const done = run.rounds === null ? String(run.round) : run.round + " of " + run.rounds;
  const rounds = [done + " "];
  if (run.status === "running" && run.rounds) {
    rounds.push(element("progress", done, { max: run.rounds, value: run.round, "aria-label": "rounds of " + run.id }));
  }
  return element("tr", [
    element("td", box), element("th", link, { scope: "row" }), element("td", run.status, { class: run.status }),
    element("td", rounds), element("td", run.result), element("td", run.megabytes, { class: "number" }),
    element("td", run.begun),
  ]);
};

const offer = () => {
  document.getElementById("chosen").disabled = chosen.size === 0;
};

const draw = () => {
  const wanted = document.getElementById("filter").value.toLowerCase();
  const some = known.filter((run) => (run.id + " " + run.name + " " + run.status).toLowerCase().includes(wanted));
  const state = JSON.stringify(some);
  if (state === shown) return;
  shown = state;
  const focused = document.activeElement?.getAttribute("aria-label");
  document.getElementById("runs").replaceChildren(...some.map(row));
  if (focused) document.querySelector("[aria-label=" + CSS.escape(focused) + "]")?.focus();
};

const say = (sentence) => {
  const place = document.getElementById("said");
  if (place.textContent !== sentence) place.textContent = sentence;
};

const follow = async () => {
  try {
    const answer = await fetch("/runs.json");
    if (!answer.ok) throw new Error(await answer.text());
    const found = await answer.json();
    known = found.runs;
    const running = known.filter((run) => run.status === "running").length;
    say(found.note || known.length + (known.length === 1 ? " run, " : " runs, ") + running + " running");
    draw();
    document.body.dataset.rows = String(known.length);
  } catch (error) {
    say("The store cannot be followed: " + (error instanceof TypeError ? "parley ui has ended." : error.message));
  }
  setTimeout(follow, 2000);
};

document.getElementById("filter").addEventListener("input", draw);
document.getElementById("chosen").addEventListener("click", () => {
  window.open(reportOf([...chosen]), "_blank", "noopener");
});
follow();
