// The tab of the training step: its time, what it waits for, memory by stage, and what each control would give.

import {ask} from "./ask.js";
import {chartIn, make, sentences, table} from "./make.js";
import * as state from "./state.js";

function percent(x) { return `${x >= 0 ? "+" : "−"}${Math.abs(100 * x).toFixed(1)} %`; }

function change(row) {
  const use = make("button", {type: "button", "aria-label": `Use ${row.words}`, onclick: () => state.set(row.change)}, "use");
  return [row.words, row.step, percent(row.faster), percent(row.per_gpu), row.mfu, row.fits ? row.memory : `${row.memory}, does not fit`, use];
}

// Without the place in a file and what would do instead.
function reason(error) { return error.replace(/^[\w.]+: /, "").split("; ")[0]; }

let waiting = null;

export const step = {
  id: "step", title: "Training step", question: "step",
  build(body) {
    const parts = {lines: make("div", {}), figures: make("div", {}), causes: make("div", {class: "flat"}), memory: make("div", {class: "low"}),
      timeline: make("div", {class: "low", id: "step-timeline"}), around: make("div", {id: "around"}),
      text: make("pre", {tabindex: "0", "aria-label": "As commsim run prints it"})};
    body.append(make("h2", {}, "The step"), parts.lines, parts.figures,
      make("h2", {}, "Where the time goes"), parts.causes, parts.timeline,
      make("h2", {}, "Memory of one GPU"), parts.memory,
      make("h2", {}, "What each control would give"), parts.around,
      make("details", {}, make("summary", {}, "As commsim run prints it"), parts.text));
    return parts;
  },
  show(parts, answer, {showError}) {
    parts.lines.replaceChildren(sentences(answer.sentences));
    parts.figures.replaceChildren(table(answer.figures.map(([name]) => name), [answer.figures.map(([, value]) => value)], [], "Figures of the step"));
    for (const name of ["causes", "memory", "timeline"]) {
      parts[`${name}Chart`] = chartIn(parts[name], answer[name], parts[`${name}Chart`]);
    }
    parts.text.textContent = answer.text;
    if (answer.misfit) showError(answer.misfit, true);
    parts.around.replaceChildren(make("p", {class: "muted"}, "simulating each ..."));
    clearTimeout(waiting);
    waiting = setTimeout(() => around(parts), 700);
  },
};

async function around(parts) {
  const answer = await ask("around", "around", state.all());
  if (!answer || !parts.around.isConnected) return;
  if (answer.error) { parts.around.replaceChildren(make("p", {}, answer.error)); return; }
  const rows = answer.rows.filter((row) => !row.error && !row.same).sort((a, b) => b.faster - a.faster);
  const same = answer.rows.filter((row) => row.same).map((row) => row.words), barred = answer.rows.filter((row) => row.error);
  parts.around.replaceChildren(
    table(["one change", "step", "tokens/s", "per GPU", "MFU", "memory", ""], rows.map(change), ["one change"], "What each control would give"),
    ...(same.length ? [make("p", {class: "muted"}, `Changes nothing: ${same.join("; ")}.`)] : []),
    ...(barred.length ? [make("h3", {}, "Cannot run"), make("ul", {class: "barred"}, barred.map((row) => make("li", {}, make("b", {}, row.words), `: ${reason(row.error)}`)))] : []));
}
