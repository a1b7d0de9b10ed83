// The tab of the topology: the fabric and one node, links coloured by the share of their bandwidth that a call uses.

import {at, turn} from "./faults.js";
import {draw, make} from "./make.js";
import * as state from "./state.js";

const PALE = [[255, 225, 150], [253, 141, 60], [178, 24, 20]], IDLE = "#c3c7cc";

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * 2, i = Math.min(Math.floor(place), 1), f = place - i;
  return `rgb(${PALE[i].map((v, k) => Math.round(v + f * (PALE[i + 1][k] - v))).join(",")})`;
}

function path(line) {
  const [[x1, y1], [x2, y2]] = [line.from, line.to];
  if (!line.bend) return `M${x1} ${y1}L${x2} ${y2}`;
  if (line.turned) return `M${x1} ${y1}Q${Math.min(x1, x2) - 2 * line.bend} ${(y1 + y2) / 2} ${x2} ${y2}`;
  return `M${x1} ${y1}Q${(x1 + x2) / 2} ${Math.min(y1, y2) - 2 * line.bend} ${x2} ${y2}`;
}

// A drawing on its side for a narrow screen: what stood in a row stands in a column, texts stay upright.
const NARROW = matchMedia("(max-width: 560px)"), DOWN = 0.7, ACROSS = 1.3;

function turned(data) {
  const point = ([x, y]) => [ACROSS * y, DOWN * x], wide = (box) => box.w > 100;
  return {...data, turned: true, width: ACROSS * data.height + 4, height: DOWN * data.width,
    boxes: data.boxes.map((box) => {
      const [x, y] = point([box.x + box.w / 2, box.y + box.h / 2]), w = wide(box) ? 64 : box.w, h = wide(box) ? DOWN * box.w : box.h;
      return {...box, x: x - w / 2, y: y - h / 2, w, h};
    }),
    lines: data.lines.map((line) => ({...line, from: point(line.from), to: point(line.to), turned: true}))};
}

function lineOf(line) {
  const failed = line.state === "failed";
  const seen = draw("path", {d: path(line), class: "seen", fill: "none",
    stroke: failed ? "#000000" : line.heat === null ? IDLE : colour(line.heat),
    "stroke-width": failed ? 1.6 : line.heat === null ? 1.4 : 2.6,
    "stroke-dasharray": failed ? "2 4" : line.state ? "8 4" : undefined});
  const hit = draw("path", {d: path(line), class: "hit", fill: "none", stroke: "transparent", "stroke-width": 9,
    "pointer-events": "stroke", "data-place": line.place, onclick: () => turn(line.place)});
  return draw("g", {class: "line"}, seen, hit, draw("title", {}, `${line.title}. A click: half its rate, failed, mended`));
}

function boxOf(box) {
  const white = box.fill === "#3f8f3a";
  const rows = box.text.split("\n"), x = box.x + box.w / 2, y = box.y + box.h / 2;
  const texts = rows.map((row, i) => draw("text", {x, y: y + 12 * (i - (rows.length - 1) / 2), style: white ? "fill:#ffffff" : undefined}, row));
  const what = box.node !== undefined ? () => state.set({node: String(box.node)}) : box.place ? () => turn(box.place) : null;
  const gone = box.place && at(box.place);
  const rect = box.fill === "none" ? null : draw("rect", {x: box.x, y: box.y, width: box.w, height: box.h, rx: 4, fill: box.fill,
    stroke: "#22303c", "stroke-width": box.chosen ? 2.6 : 0.8, "stroke-dasharray": gone ? "3 3" : undefined,
    class: what ? "hit" : undefined, "data-place": box.place, "data-node": box.node, onclick: what});
  const hint = box.node !== undefined ? `Look inside node ${box.node}` : box.place ? `${box.title}. A click: half its rate, failed, mended` : box.title;
  return draw("g", {class: what ? "box" : ""}, rect, ...texts, hint ? draw("title", {}, hint) : null);
}

function picture(data, label) {
  const svg = draw("svg", {class: "drawing", viewBox: `0 0 ${data.width} ${data.height}`, role: "img", "aria-label": label,
    style: `max-width:${Math.round(1.6 * data.width)}px;min-width:${Math.round((data.turned ? 0.8 : 0.6) * data.width)}px`});
  svg.append(...data.lines.map(lineOf), ...data.boxes.map(boxOf));
  return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, svg);
}

export const machine = {
  id: "topology", title: "Topology", question: "topology",
  build(body) {
    const size = make("select", {"aria-label": "Size of the call", onchange: () => state.set({size: size.value})});
    const node = make("input", {type: "number", min: 0, "aria-label": "Node to look inside", onchange: () => state.set({node: node.value})});
    const parts = {size, node, facts: make("p", {class: "muted"}), said: make("div", {class: "sentences"}), fabric: make("div", {}), inside: make("div", {}), title: make("h2", {})};
    const keys = [[colour(0.05), "5 % of the bandwidth"], [colour(0.5), "50 %"], [colour(1), "100 %"], [IDLE, "nothing counted (NCCL: PCIe and CPUs are not)"]];
    body.append(make("h2", {}, "The machine"), parts.facts, parts.said,
      make("div", {class: "row"}, make("label", {}, "heat of a call of", size), make("label", {}, "look inside node", node)),
      make("ul", {class: "key"}, keys.map(([c, text]) => make("li", {}, make("i", {style: `border-color:${c}`}), text)),
        make("li", {}, make("i", {style: "border-color:#555555;border-top-style:dashed"}), "degraded"),
        make("li", {}, make("i", {style: "border-color:#000000;border-top-style:dotted"}), "failed")),
      parts.fabric, parts.title, parts.inside,
      make("p", {class: "muted"}, "A click on a link, a NIC or a switch turns it: half its rate, failed, mended. A click on a node looks inside. The form beside does the same."));
    return parts;
  },
  show(parts, answer) {
    parts.facts.textContent = answer.facts;
    parts.said.replaceChildren(make("p", {}, answer.said));
    const sizes = answer.sizes.includes(answer.size) ? answer.sizes : [...answer.sizes, answer.size];
    parts.size.replaceChildren(...sizes.map((s) => make("option", {value: s}, s)));
    parts.size.value = answer.size;
    parts.node.max = answer.node.of - 1;
    parts.node.value = answer.node.number;
    parts.fabric.replaceChildren(...(answer.fabric ? [picture(answer.fabric, "The fabric: nodes below, switches above")] : []));
    parts.title.textContent = `Inside node ${answer.node.number}`;
    const inside = () => parts.inside.replaceChildren(picture(NARROW.matches ? turned(answer.node) : answer.node, `Inside node ${answer.node.number}`));
    NARROW.onchange = inside;
    inside();
  },
};
