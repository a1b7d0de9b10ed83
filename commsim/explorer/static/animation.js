// The tab of the schedule: chunks travel between ranks step by step, and a table says what every rank holds.

import {draw, make} from "./make.js";
import * as state from "./state.js";

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#B5579A", "#E69F00", "#3FA7D6", "#8C510A", "#5E4FA2"];
const SIZE = 520, STEP_MS = 900;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

function colourOf(datum, data) {
  return data <= COLOURS.length || !data ? COLOURS[datum % COLOURS.length] : `hsl(${Math.round(360 * datum / data)} 70% 42%)`;
}

// Ranks on a circle, node by node with gaps; switches and servers in its middle.
function places(answer) {
  const nodes = answer.ranks / answer.per_node, gap = nodes > 1 ? 0.6 : 0, all = answer.ranks + gap * nodes;
  const at = [];
  for (let r = 0; r < answer.ranks; r++) {
    const angle = 2 * Math.PI * (r + gap * Math.floor(r / answer.per_node)) / all - Math.PI / 2;
    at.push([SIZE / 2 + 215 * Math.cos(angle), SIZE / 2 + 215 * Math.sin(angle)]);
  }
  const more = answer.endpoints - answer.ranks;
  for (let k = 0; k < more; k++) {
    const angle = 2 * Math.PI * k / more, radius = more > 1 ? 70 : 0;
    at.push([SIZE / 2 + radius * Math.cos(angle), SIZE / 2 + radius * Math.sin(angle)]);
  }
  return at;
}

class Player {
  constructor(parts) {
    this.parts = parts;
    this.step = 0;  // so many steps are done
    this.part = 0;  // of the next one
    this.playing = false;
  }

  load(answer) {
    const same = this.answer && this.answer.title === answer.title && this.answer.facts === answer.facts;
    this.answer = answer;
    this.at = places(answer);
    this.held = [new Map(answer.first.map(([e, d, n]) => [`${e},${d}`, n]))];
    for (const step of answer.steps) {
      const now = new Map(this.held[this.held.length - 1]);
      for (const [e, d, n] of step.cells) now.set(`${e},${d}`, n);
      this.held.push(now);
    }
    this.goal = new Map(answer.goal.map(([e, d, n]) => [`${e},${d}`, n]));
    this.ground();
    this.parts.slider.max = answer.steps.length;
    this.go(same ? this.step : 0);
  }

  ground() {
    const radius = this.answer.endpoints > 24 ? 11 : 18;
    this.moving = draw("g", {});
    this.parts.picture.replaceChildren(this.moving, ...this.at.map(([x, y], e) => draw("g", {},
      draw("circle", {cx: x, cy: y, r: radius, fill: e < this.answer.ranks ? "#eef6e7" : "#e6dff3", stroke: "#22303c"}),
      draw("text", {x, y}, e < this.answer.ranks ? String(e) : "+"))));
  }

  go(step) {
    this.step = Math.max(0, Math.min(step, this.answer.steps.length));
    this.part = 0;
    this.parts.slider.value = this.step;
    const last = this.answer.steps.length;
    this.parts.slider.setAttribute("aria-valuetext", `after step ${this.step} of ${last}`);
    this.parts.words.textContent = `after step ${this.step} of ${last}`;
    this.arrows();
    this.table();
  }

  arrows() {
    const step = this.answer.steps[this.step];
    const moves = step ? step.moves : [];
    this.dots = [];
    const shapes = [], count = new Map();
    for (const [src, dst, datum, adds] of moves) {
      if (src === dst) continue;
      const pair = `${src},${dst}`, k = count.get(pair) || 0;
      count.set(pair, k + 1);
      if (k > 5) continue;  // more between the same two lie on each other
      const [x1, y1] = this.at[src], [x2, y2] = this.at[dst], length = Math.hypot(x2 - x1, y2 - y1) || 1;
      const nx = -(y2 - y1) / length, ny = (x2 - x1) / length, off = 5 + 5 * k;
      const colour = colourOf(datum, this.answer.data);
      shapes.push(draw("path", {d: `M${x1 + nx * off} ${y1 + ny * off}L${x2 + nx * off} ${y2 + ny * off}`, stroke: colour, "stroke-width": 1.4, opacity: 0.55, fill: "none"}));
      const dot = draw("circle", {r: 6, fill: adds ? "#ffffff" : colour, stroke: colour, "stroke-width": 3});
      this.dots.push([dot, x1 + nx * off, y1 + ny * off, x2 + nx * off, y2 + ny * off]);
    }
    this.moving.replaceChildren(...shapes, ...this.dots.map(([dot]) => dot));
    this.move();
  }

  move() {
    const f = 0.12 + 0.76 * this.part;
    for (const [dot, x1, y1, x2, y2] of this.dots) { dot.setAttribute("cx", x1 + f * (x2 - x1)); dot.setAttribute("cy", y1 + f * (y2 - y1)); }
  }

  table() {
    const {answer} = this, now = this.held[this.step];
    if (!answer.data) { this.parts.holds.replaceChildren(make("p", {class: "muted"}, "too many chunks to list")); return; }
    const done = [...this.goal].filter(([cell, n]) => (now.get(cell) || 0) === n).length;
    const rows = [];
    for (let e = 0; e < answer.endpoints; e++) {
      const cells = [];
      for (let d = 0; d < answer.data; d++) {
        const n = now.get(`${e},${d}`) || 0, most = answer.reduces ? answer.ranks : 1;
        const style = n ? `background:color-mix(in srgb, ${colourOf(d, answer.data)} ${Math.round(25 + 75 * Math.min(1, n / most))}%, white)` : "background:#ececef";
        cells.push(make("td", {style, title: `${e < answer.ranks ? `rank ${e}` : "switch"}, chunk ${d}: ${n ? (answer.reduces ? `the sum of ${n} rank${n > 1 ? "s" : ""}` : "held") : "nothing"}`}));
      }
      rows.push(make("tr", {}, make("th", {scope: "row"}, e < answer.ranks ? `rank ${e}` : "switch"), cells));
    }
    this.parts.holds.replaceChildren(make("p", {class: "muted"}, `${done} of ${this.goal.size} chunks are where they must end; ` +
      (answer.reduces ? "a darker cell is the sum of more ranks" : "a coloured cell is held")), make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "What every rank holds"}, make("table", {class: "holds"}, make("tbody", {}, rows))));
  }

  play(on) {
    this.playing = on;
    this.parts.play.textContent = on ? "Pause" : "Play";
    if (!on) return;
    if (this.step >= this.answer.steps.length) this.go(0);
    this.before = performance.now();
    requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (!this.playing || !this.parts.picture.isConnected) { this.playing = false; return; }
    this.part += (now - this.before) / (STEP_MS / this.parts.speed.value);
    this.before = now;
    if (this.part >= 1) {
      this.go(this.step + 1);
      if (this.step >= this.answer.steps.length) { this.play(false); return; }
    } else if (!calm.matches) this.move();
    requestAnimationFrame((next) => this.tick(next));
  }
}

// The algorithms of the collective; one that an address names and that is none of them leaves the choice open.
function list(parts, collective, chosen) {
  parts.algorithm.replaceChildren(...(parts.known[collective] || []).map(([name, text]) => make("option", {value: name, title: text}, name)));
  parts.algorithm.value = chosen;
}

export const animation = {
  id: "schedule", title: "Schedule", question: "schedule",
  build(body, page) {
    const slider = make("input", {type: "range", min: 0, step: 1, "aria-label": "Step", id: "schedule-step"});
    const ranks = make("input", {type: "number", min: 1, max: 64, "aria-label": "Ranks"});
    const speed = make("select", {"aria-label": "Speed"}, [["0.5", "half"], ["1", "normal"], ["3", "quick"]].map(([v, t]) => make("option", {value: v}, t)));
    const parts = {
      algorithm: make("select", {"aria-label": "Algorithm", id: "schedule-algorithm"}), ranks, slider, speed,
      title: make("h2", {}), facts: make("p", {class: "muted"}), words: make("output", {}), holds: make("div", {}),
      play: make("button", {type: "button", id: "schedule-play"}, "Play"),
      picture: draw("svg", {class: "drawing", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": "Ranks and the chunks that travel between them", style: `max-width:${SIZE}px`}),
    };
    speed.value = "1";
    const player = parts.player = new Player(parts);
    const step = (by) => () => { player.play(false); player.go(player.step + by); };
    parts.algorithm.addEventListener("change", () => state.set({schedule: parts.algorithm.value}));
    ranks.addEventListener("change", () => state.set({ranks: ranks.value}));
    slider.addEventListener("input", () => { player.play(false); player.go(+slider.value); });
    parts.play.addEventListener("click", () => player.play(!player.playing));
    body.append(parts.title, parts.facts,
      make("div", {class: "row"}, make("label", {}, "algorithm", parts.algorithm), make("label", {}, "ranks", ranks), make("label", {}, "speed", speed)),
      make("div", {class: "row"}, parts.play, make("button", {type: "button", onclick: step(-1), "aria-label": "One step back"}, "−1"),
        make("button", {type: "button", onclick: step(1), "aria-label": "One step on"}, "+1"), slider, parts.words),
      make("ul", {class: "key"}, make("li", {}, "full dot: a copy"), make("li", {}, "ring: added where it arrives"), make("li", {}, "+: a switch or server that adds or copies")),
      parts.picture, make("h2", {}, "What every rank holds"), parts.holds);
    parts.known = page.options.algorithms;
    list(parts, state.get("collective"), state.get("schedule"));
    return parts;
  },
  show(parts, answer, {collective}) {
    parts.title.textContent = answer.title;
    parts.facts.textContent = answer.facts;
    list(parts, collective, answer.algorithm);
    parts.ranks.value = answer.ranks;
    parts.player.load(answer);
  },
};
