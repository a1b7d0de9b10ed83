// The tab of a log: a file dropped on the page is judged; its curve lies over the prediction in the tab of the curve.

import {judge} from "./ask.js";
import {measured} from "./curve.js";
import {chartIn, make, table} from "./make.js";
import * as state from "./state.js";

const MOST = 64 << 20;
let file = null, kept = null, against = "";

function open(parts) {
  return parts.results.isConnected;
}

async function send(parts) {
  if (!file) return;
  if (file.size > MOST) { parts.page.showError(`found a log of ${(file.size / (1 << 20)).toFixed(0)} MiB, expected at most 64`); return; }
  parts.name.textContent = `${file.name}: judged ...`;
  const answer = await judge(file, state.all(), against);
  if (!answer || !open(parts)) return;
  parts.name.textContent = file.name;
  parts.page.showError(answer.error, true);
  if (answer.error) { parts.results.replaceChildren(); return; }
  kept = answer;
  measured(answer.curves);
  show(parts);
}

function show(parts) {
  if (kept.ask) {
    parts.results.replaceChildren(make("p", {}, kept.ask), make("ul", {}, kept.choices.map(([name, words]) => make("li", {},
      make("button", {type: "button", onclick: () => { against = name; send(parts); }}, words)))));
    return;
  }
  const made = kept.verdicts.map((v) => {
    const chart = make("div", {});
    const causes = v.causes.length ? table(["cause", "probability", "how far off"], v.causes, ["cause", "how far off"], "Causes") : null;
    return {chart, data: v.chart, part: make("section", {}, make("div", {class: "sentences"}, make("p", {"data-state": v.state}, v.answer)), causes,
      v.test ? make("p", {}, v.test) : null, chart, make("details", {}, make("summary", {}, "Every size"), make("pre", {tabindex: "0", "aria-label": "Every size"}, v.text)))};
  });
  parts.results.replaceChildren(...kept.said.map((line) => make("p", {class: "muted"}, line)), ...made.map((m) => m.part));
  for (const m of made) chartIn(m.chart, structuredClone(m.data));
}

export const log = {
  id: "log", title: "Log",
  build(body, page) {
    const choose = make("input", {type: "file", id: "log-file", "aria-label": "A log of nccl-tests, or a table"});
    const whose = make("select", {"aria-label": "Which machine it is judged on", id: "log-against"},
      [["", "as the log says"], ["page", "the machine of this page"], ...page.options.presets.map((p) => [p.name, p.name])].map(([v, t]) => make("option", {value: v}, t)));
    const parts = {page, name: make("p", {role: "status"}), results: make("div", {id: "log-results"})};
    const drop = make("div", {class: "drop", id: "log-drop"}, make("p", {}, "Drop a log of nccl-tests here, or choose a file."), choose);
    choose.addEventListener("change", () => { file = choose.files[0]; send(parts); });
    whose.value = against;
    whose.addEventListener("change", () => { against = whose.value; send(parts); });
    body.append(make("h2", {}, "Is my machine as it should be?"), drop, make("div", {class: "row"}, make("label", {}, "judge it on", whose)), parts.name,
      make("p", {class: "muted"}, "The log stays on this machine. Its curve then lies over the prediction in Curve."), parts.results);
    return parts;
  },
  show(parts) {
    if (file && against === "page") send(parts);
    else if (kept && !parts.shown) { parts.shown = true; parts.name.textContent = file.name; show(parts); }
  },
  // The command that judges the same.
  command() {
    const on = against === "page" ? state.get("on") : against;
    return `commsim compare ${file ? `'${file.name.replaceAll("'", "'\\''")}'` : "FILE"}${on ? ` --on ${on}` : ""}\n`;
  },
  // A file that is dropped anywhere on the page.
  take(dropped, parts) { file = dropped; if (parts) send(parts); },
};

export function dropAnywhere(onFile) {
  addEventListener("dragover", (event) => { event.preventDefault(); document.getElementById("log-drop")?.classList.add("over"); });
  addEventListener("dragleave", () => document.getElementById("log-drop")?.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.getElementById("log-drop")?.classList.remove("over");
    if (event.dataTransfer.files.length) onFile(event.dataTransfer.files[0]);
  });
}
