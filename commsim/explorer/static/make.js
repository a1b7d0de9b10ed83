// Elements: make("p", {class: "muted"}, "text", child); text is never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function make(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// A table; columns named in `words` are flush left. Cells are text or elements.
export function table(columns, rows, words = [], caption = "") {
  const side = (i) => (words.includes(columns[i]) ? "word" : undefined);
  return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "Table"},
    make("table", {},
      make("thead", {}, make("tr", {}, columns.map((c, i) => make("th", {scope: "col", class: side(i)}, c)))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, i) => make("td", {class: side(i)}, cell)))))));
}

export function sentences(lines) {
  return make("div", {class: "sentences"}, lines.map((line) => make("p", {}, line)));
}

// A chart in its element, made once and updated after that.
export function chartIn(element, chart, held) {
  if (held) { held.update(chart); return held; }
  return commsimChart(element, chart);
}
