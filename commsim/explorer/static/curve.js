// The tab of the curve: bus bandwidth and time over message size, with a measured curve from a log on top.

import {chartIn, make, sentences, table} from "./make.js";
import * as state from "./state.js";

let logs = [];  // curves of the log that was dropped, as series of the panels

export function measured(curves) { logs = curves; }

export const curve = {
  id: "curve", title: "Curve", question: "curve",
  build(body) {
    const parts = {
      lines: make("div", {}),
      chart: make("div", {id: "curve-chart"}),
      rows: make("div", {}),
      text: make("pre", {tabindex: "0", "aria-label": "As commsim run prints it"}),
    };
    body.append(make("h2", {}, "Bus bandwidth and time"), parts.lines, parts.chart, make("h2", {}, "Sizes"), parts.rows,
      make("details", {}, make("summary", {}, "As commsim run prints it"), parts.text));
    return parts;
  },
  show(parts, answer, {collective, warn}) {
    parts.lines.replaceChildren(sentences(answer.sentences));
    for (const log of logs) {
      if (log.collective !== collective) continue;
      if (log.ranks && log.ranks !== answer.ranks) warn(`the log is of another machine: ${log.ranks} ranks against ${answer.ranks}. `, log.machine && make("button", {type: "button", onclick: () => state.set(log.machine)}, "Take the log's machine"));
      answer.chart.panels.forEach((panel, i) => panel.series.push(log.series[i]));
    }
    parts.held = chartIn(parts.chart, answer.chart, parts.held);
    parts.rows.replaceChildren(table(answer.columns, answer.rows, ["algorithm", "protocol", "bottleneck"], "Sizes"));
    parts.text.textContent = answer.text;
  },
};
