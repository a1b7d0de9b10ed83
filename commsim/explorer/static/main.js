// The page: tabs over one panel. Whatever changes the state asks for the open tab again; the newest answer is shown.

import {ask, cancel, options} from "./ask.js";
import {animation} from "./animation.js";
import {controls} from "./controls.js";
import {curve} from "./curve.js";
import {machine} from "./machine.js";
import {faults} from "./faults.js";
import {dropAnywhere, log} from "./log.js";
import {make} from "./make.js";
import {plan} from "./plan.js";
import {step} from "./step.js";
import * as state from "./state.js";

const TABS = [curve, machine, animation, step, plan, log];
const place = (id) => document.getElementById(id);
let shown = false;  // whether the open tab has an answer
let open = null, parts = null, known = null;

function tabOf() { return TABS.find((tab) => tab.id === state.get("tab")) || TABS[0]; }

function say(text) {
  place("said").textContent = text;
  setTimeout(() => { if (place("said").textContent === text) place("said").textContent = ""; }, 2500);
}

// What is wrong, as the command line says it; the answer before it stays, pale, unless it is of this question.
function showError(text, answered = false) {
  place("error").hidden = !text;
  place("error").textContent = text || "";
  place("panel").classList.toggle("stale", Boolean(text) && !answered && shown);
}

async function refresh() {
  const tab = tabOf();
  if (tab !== open) {
    place("body").replaceChildren();
    showError("");
    place("warnings").replaceChildren();
    open = tab;
    shown = false;
    parts = tab.build(place("body"), {say, showError, refresh, options: known});
  }
  for (const button of place("tabs").children) {
    const chosen = button.id === `tab-${tab.id}`;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  place("panel").setAttribute("aria-labelledby", `tab-${tab.id}`);
  if (!tab.question) { cancel("panel"); asking(false); tab.show(parts, null, context()); answered(); return; }
  asking(true);
  const answer = await ask("panel", tab.question, state.all());
  if (answer === null || open !== tab) return;
  asking(false);
  showError(answer.error);
  if (answer.error) { answered(); return; }
  place("warnings").replaceChildren(...(answer.warnings || []).map((text) => make("p", {}, `Warning: ${text}`)));
  tab.show(parts, answer, context());
  shown = true;
  answered();
}

// While an answer is computed the one before it is pale; after a moment a line says for how long, and can end it.
let clock = null;

function asking(begins) {
  clearInterval(clock);
  place("panel").classList.toggle("asking", begins);
  place("computing").hidden = true;
  if (!begins) return;
  place("panel").classList.remove("stale");
  const begun = performance.now();
  clock = setInterval(() => {
    place("computing").hidden = false;
    place("computing-words").textContent = `computing ... ${Math.round((performance.now() - begun) / 1000)} s`;
  }, 500);
}

function stop() {
  cancel("panel");
  asking(false);
  showError("cancelled: change the question, or open the tab again");
  answered();
}

// Counts what has been shown: the tests wait for it.
function answered() { document.body.dataset.answered = `${+(document.body.dataset.answered || 0) + 1}`; }

function warn(text, ...more) { place("warnings").append(make("p", {}, `Warning: ${text}`, ...more)); }

function context() { return {collective: state.get("collective"), say, showError, refresh, warn}; }

function tabs() {
  for (const tab of TABS) {
    place("tabs").append(make("button", {type: "button", role: "tab", id: `tab-${tab.id}`, "aria-controls": "panel",
      onclick: () => state.set({tab: tab.id === "curve" ? "" : tab.id})}, tab.title));
  }
  place("tabs").addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const all = [...place("tabs").children], at = all.indexOf(document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    next.click();
    event.preventDefault();
  });
}

async function copy(form) {
  const answer = await ask("forms", "forms", state.all());
  if (!answer) return;
  if (answer.error) { showError(answer.error); return; }
  if (form === "command" && tabOf().command) answer.command = tabOf().command();
  place("panel").dataset.copied = answer[form];
  try {
    await navigator.clipboard.writeText(answer[form]);
    say(`copied as ${form}`);
  } catch (refused) {
    place("warnings").replaceChildren(make("pre", {tabindex: "0", "aria-label": "To copy"}, answer[form]));
    say("the browser does not let pages copy: it stands above the answer");
  }
}

async function main() {
  known = await options();
  state.begin(known.defaults, known.start);
  tabs();
  controls(place("controls"), known);
  const narrow = matchMedia("(max-width: 820px)");
  const fold = () => { place("question").open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  faults(place("faults"));
  place("computing-stop").addEventListener("click", stop);
  document.querySelectorAll("[data-form]").forEach((button) => button.addEventListener("click", () => copy(button.dataset.form)));
  dropAnywhere(async (file) => {
    if (tabOf() !== log) state.set({tab: "log"});
    log.take(file, parts);
  });
  state.onChange(refresh);
  await refresh();
}

main();
