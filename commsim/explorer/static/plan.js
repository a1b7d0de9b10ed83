// The tab of the plan: a bounded search over machine and cuts, with progress and an end; a point shows its step.

import {follow} from "./ask.js";
import {chartIn, make, sentences, table} from "./make.js";
import * as state from "./state.js";

let kept = null;  // the last answer, shown again when the tab is opened

export const plan = {
  id: "plan", title: "Plan",
  build(body, page) {
    const parts = {
      start: make("button", {type: "button", id: "plan-start"}, "Search"),
      stop: make("button", {type: "button", id: "plan-stop", disabled: true}, "Cancel"),
      bar: make("progress", {value: 0, max: 1, hidden: true, "aria-label": "Progress of the search"}), words: make("span", {role: "status"}),
      lines: make("div", {}), chart: make("div", {id: "plan-chart"}), rows: make("div", {}), counted: make("details", {hidden: true}), page,
    };
    parts.start.addEventListener("click", () => search(parts));
    body.append(make("h2", {}, "The planner's front"),
      make("p", {class: "muted"}, "Every cut of the model over this machine, half of it and twice of it, is ranked; the best are simulated. Model, sequences and machine are those beside."),
      make("div", {class: "row"}, parts.start, parts.stop, parts.bar, parts.words), parts.lines, parts.chart, parts.rows, parts.counted);
    return parts;
  },
  show(parts) {
    if (kept && !parts.shown) { parts.shown = true; show(parts, kept); }
    else if (parts.shown) parts.words.textContent = "the question has changed: search again";
  },
};

async function search(parts) {
  const stop = new AbortController(), end = () => stop.abort();
  parts.stop.addEventListener("click", end);
  parts.start.disabled = true;
  parts.stop.disabled = false;
  parts.bar.hidden = false;
  parts.words.textContent = "starting";
  const answer = await follow(state.all(), ({what, done, of}) => {
    parts.bar.max = of || 1;
    parts.bar.value = done;
    parts.words.textContent = `${what} ${done.toLocaleString("en")} of ${of.toLocaleString("en")}`;
  }, stop);
  parts.stop.removeEventListener("click", end);
  parts.start.disabled = false;
  parts.stop.disabled = true;
  parts.bar.hidden = true;
  parts.words.textContent = answer ? "" : "cancelled";
  if (!answer) return;
  parts.page.showError(answer.error, !parts.shown);
  if (answer.error) return;
  kept = answer;
  parts.shown = true;
  show(parts, answer);
}

function choose(point) { state.set({...point.state, tab: "step"}); }

function show(parts, answer) {
  parts.lines.replaceChildren(sentences(answer.sentences));
  parts.held = chartIn(parts.chart, answer.chart, parts.held);
  parts.held.echart.off("click");
  parts.held.echart.on("click", ({dataIndex, seriesId, seriesIndex}) => {
    const series = answer.chart.panels[0].series[seriesId ? +seriesId.split("-")[1] : seriesIndex];
    const x = series?.x[dataIndex], y = series?.y[dataIndex];
    const point = answer.points.find((p) => Math.abs(p.memory - x) < 1e-6 && Math.abs(p.cost - y) < 1e-9 * y);
    if (point) choose(point);
  });
  const rows = answer.rows.map((row, i) => [...row, make("button", {type: "button", "aria-label": `Show the step of rank ${row[0]}`, onclick: () => choose(answer.points[i])}, "its step")]);
  parts.rows.replaceChildren(...(answer.alike ? [make("p", {class: "muted"}, `All: ${answer.alike}`)] : []),
    table([...answer.columns, ""], rows, ["recompute", "schedule"], "Configurations, best first"));
  parts.counted.hidden = false;
  parts.counted.replaceChildren(make("summary", {}, "What was looked at"), make("pre", {tabindex: "0", "aria-label": "What was looked at"}, answer.counted.join("\n")));
}
