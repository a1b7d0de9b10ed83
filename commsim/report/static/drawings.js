"use strict";
/* Drawings (inline SVG) that can be looked at closely: buttons, the wheel with Ctrl, and a drag once it is enlarged. */
document.querySelectorAll("figure .drawing").forEach(function (place) {
  var svg = place.querySelector("svg"), bar = document.createElement("div"), whole, seen, held = null;
  if (!svg || !svg.viewBox.baseVal.width) return;
  whole = [svg.viewBox.baseVal.x, svg.viewBox.baseVal.y, svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
  function show(x, y, share) {
    var s = Math.min(1, Math.max(0.05, share)), w = whole[2] * s, h = whole[3] * s;
    x = Math.min(Math.max(x, whole[0]), whole[0] + whole[2] - w);
    y = Math.min(Math.max(y, whole[1]), whole[1] + whole[3] - h);
    seen = {x: x, y: y, share: s};
    svg.setAttribute("viewBox", [x, y, w, h].join(" "));
    svg.style.cursor = s < 1 ? "grab" : "";
  }
  function by(factor, right, down) { // about a point, in shares of what is seen
    var next = Math.min(1, Math.max(0.05, seen.share * factor)), less = seen.share - next;
    show(seen.x + right * whole[2] * less, seen.y + down * whole[3] * less, next);
  }
  function button(text, title, act) {
    var made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.title = title;
    made.addEventListener("click", act);
    bar.appendChild(made);
  }
  show(whole[0], whole[1], 1);
  bar.className = "zooms";
  button("+", "Zoom in", function () { by(0.6, 0.5, 0.5); });
  button("\u2212", "Zoom out", function () { by(1 / 0.6, 0.5, 0.5); });
  button("All", "Show everything", function () { show(whole[0], whole[1], 1); });
  place.parentElement.insertBefore(bar, place);
  svg.addEventListener("wheel", function (event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    var box = svg.getBoundingClientRect();
    by(event.deltaY < 0 ? 0.8 : 1.25, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, {passive: false});
  svg.addEventListener("pointerdown", function (event) {
    if (seen.share === 1) return;
    held = {x: event.clientX, y: event.clientY, at: seen};
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", function (event) {
    if (!held) return;
    var box = svg.getBoundingClientRect(), share = held.at.share;
    show(held.at.x - (event.clientX - held.x) / box.width * whole[2] * share, held.at.y - (event.clientY - held.y) / box.height * whole[3] * share, share);
  });
  svg.addEventListener("pointerup", function () { held = null; });
  svg.addEventListener("dblclick", function () { show(whole[0], whole[1], 1); });
});
