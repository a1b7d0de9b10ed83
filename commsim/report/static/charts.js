"use strict";
/* Draws the charts of `commsim.report.chart` with ECharts: commsimChart(element, chart) returns {update, echart}.

   A chart is panels that share x (crosshair, zoom, hover), or a timeline of spans. Its key is a row of buttons that
   hide and show; other buttons zoom and change a scale between logarithmic and linear. The wheel zooms with Ctrl, a
   drag moves, a double click shows everything again. `chart_axes.js`, `chart_panels.js` and `chart_timeline.js` come
   before this file. */

var commsimChart = (function () {
  var {BELOW, escaped} = commsimAxes, {SYMBOLS, above} = commsimPanels;
  var STYLE = ".chart{position:relative}.chart .canvas{width:100%}" +
    ".chart .scales,.chart .key{display:flex;flex-wrap:wrap;gap:.3rem;margin:.15rem .25rem}.chart .scales{justify-content:flex-end}" +
    ".chart button{font:13px/1.3 system-ui,sans-serif;color:#222;background:#f5f6f8;border:1px solid #c4c7cf;border-radius:4px;padding:.2rem .5rem;cursor:pointer;text-align:left}" +
    ".chart button:hover{background:#e8eaee}.chart button:focus-visible{outline:2px solid #0072b2;outline-offset:1px}" +
    ".chart .key{gap:.1rem .6rem}.chart .key button{border-color:transparent;background:none;display:inline-flex;align-items:center;gap:.4rem}" +
    ".chart .key button[aria-pressed=false]{color:#5f6068;text-decoration:line-through}.chart .key svg{width:24px;height:12px;min-width:24px;flex:none}" +
    ".chart .note{font:12px/1.3 system-ui,sans-serif;color:#5f6068;margin:.2rem .5rem}" +
    "@media print{.chart .scales{display:none}.chart .key button[aria-pressed=false]{display:none}}";

  function swatch(look, colour, shape) {
    var c = escaped(colour), marker = '<circle cx="12" cy="6" r="3.4" fill="#fff" stroke="' + c + '" stroke-width="2"/>';
    if (shape === "rect") marker = '<rect x="8.5" y="2.5" width="7" height="7" fill="#fff" stroke="' + c + '" stroke-width="2"/>';
    if (shape === "triangle") marker = '<path d="M12 2l4 8h-8z" fill="#fff" stroke="' + c + '" stroke-width="2"/>';
    if (shape === "diamond") marker = '<path d="M12 1.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z" fill="#fff" stroke="' + c + '" stroke-width="2"/>';
    if (look === "line" || look === "steps") marker = '<path d="M1 6h22" stroke="' + c + '" stroke-width="2.4"/>' + (look === "line" ? '<circle cx="12" cy="6" r="2.6" fill="' + c + '"/>' : "");
    if (look === "dashed") marker = '<path d="M1 6h22" stroke="' + c + '" stroke-width="1.6" stroke-dasharray="5 3"/>';
    if (look === "bars") marker = '<rect x="5" y="0" width="14" height="12" fill="' + c + '"/>';
    if (look === "band") marker = '<rect x="1" y="0" width="22" height="12" fill="' + c + '" opacity="0.25"/>';
    return '<svg viewBox="0 0 24 12" aria-hidden="true">' + marker + "</svg>";
  }

  // Each name once: [name, swatch].
  function keyOf(chart) {
    var names = {}, key = [];
    function add(name, look, colour, shape) { if (!names[name]) { names[name] = true; key.push([name, swatch(look, colour, shape)]); } }
    chart.key.forEach(function (pair) { add(pair[0], "bars", pair[1]); });
    chart.panels.forEach(function (panel) {
      var points = 0;
      panel.series.forEach(function (s) { add(s.name, s.look, s.colour, SYMBOLS[(s.look === "points" ? points++ : 0) % 4]); });
    });
    chart.panels.forEach(function (panel) {
      var banded = panel.series.filter(function (s) { return s.low.length; });
      if (banded.length) add(panel.band, "band", banded[0].colour);
      panel.shades.forEach(function (shade) { if (shade.text) add(shade.text, "bars", shade.colour); });
    });
    return key;
  }

  function button(text, title, act) {
    var made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (title) made.title = title;
    made.addEventListener("click", act);
    return made;
  }

  function part(element, name) {
    var made = document.createElement("div");
    made.className = name;
    element.appendChild(made);
    return made;
  }

  // The chart with all its fields; in JSON spans name their kind (`Chart.to_json`).
  function unpacked(chart) {
    if (chart.kinds) chart.spans = chart.spans.map(function (s) {
      var kind = chart.kinds[s[3]];
      return {row: s[0], start: s[1], end: s[2], text: kind[0], colour: kind[1], note: kind[2], low: kind[3], high: kind[4]};
    });
    delete chart.kinds;
    ["panels", "rows", "spans", "key"].forEach(function (name) { chart[name] = chart[name] || []; });
    chart.panels.forEach(function (panel) {
      panel.marks = panel.marks || [];
      panel.shades = panel.shades || [];
      panel.series.forEach(function (s) { ["low", "high", "notes", "labels"].forEach(function (name) { s[name] = s[name] || []; }); });
    });
    return chart;
  }

  return function (element, chart) {
    unpacked(chart);
    if (!document.getElementById("chart-style")) {
      var style = document.createElement("style");
      style.id = "chart-style";
      style.textContent = STYLE;
      document.head.appendChild(style);
    }
    element.textContent = "";
    element.classList.add("chart");
    var bar = part(element, "scales"), canvas = part(element, "canvas"), key = part(element, "key"), note = part(element, "note");
    canvas.setAttribute("role", "img");
    var hidden = {}, view = [0, 100], printed = 0, echart = null;

    // A page may set --chart-height; otherwise rows and panels say how high a chart is.
    function size() {
      var narrow = element.clientWidth < 560, units = chart.panels.reduce(function (sum, panel) { return sum + panel.height; }, 0);
      var high = chart.rows.length ? Math.min(64 + 30 * chart.rows.length, 900) : above(chart) + BELOW + (narrow ? 170 : 210) * (units + 0.2);
      canvas.style.height = "var(--chart-height, " + Math.round(high) + "px)";
      canvas.style.width = printed ? printed + "px" : "";
      return {width: canvas.clientWidth || 640, height: canvas.clientHeight || high};
    }
    function axes() { return [chart.x].concat(chart.panels.map(function (panel) { return panel.y; })); }
    function zoom(low, high) {
      var long = Math.min(100, Math.max(1, high - low)), start = Math.min(Math.max(0, low), 100 - long);
      view = [start, start + long];
      draw();
    }
    function by(factor) { var middle = (view[0] + view[1]) / 2, half = (view[1] - view[0]) / 2 * factor; zoom(middle - half, middle + half); }
    function focusKept(at, build) {
      var index = Array.prototype.indexOf.call(at.children, document.activeElement);
      at.textContent = "";
      build();
      if (index >= 0 && at.children[index]) at.children[index].focus();
    }
    function controls() {
      focusKept(bar, function () {
        axes().forEach(function (axis) {
          if (!axis.switch) return;
          bar.appendChild(button(axis.label + ": " + (axis.scale === "log" ? "logarithmic" : "linear"), "Change to " + (axis.scale === "log" ? "linear" : "logarithmic"), function () {
            axis.scale = axis.scale === "log" ? "linear" : "log";
            view = [0, 100];
            draw();
          })).className = "scale";
        });
        bar.appendChild(button("+", "Zoom in", function () { by(0.5); })).className = "zoom";
        bar.appendChild(button("\u2212", "Zoom out", function () { by(2); })).className = "zoom";
        bar.appendChild(button("All", "Show everything", function () { zoom(0, 100); })).className = "zoom";
      });
      var names = keyOf(chart);
      focusKept(key, function () {
        names.forEach(function (pair) {
          var made = button("", "Hide or show", function () { hidden[pair[0]] = !hidden[pair[0]]; draw(); });
          made.innerHTML = pair[1] + "<span>" + escaped(pair[0]) + "</span>";
          made.setAttribute("aria-pressed", !hidden[pair[0]]);
          key.appendChild(made);
        });
      });
      note.textContent = chart.note || "";
      note.hidden = !chart.note;
    }
    function draw() {
      var room = size();
      if (!echart) echart = echarts.init(canvas, null, {renderer: "svg"});
      echart.resize();
      controls();
      canvas.setAttribute("aria-label", chart.title);
      echart.setOption(option(room), {notMerge: true});
    }
    function option(room) { return (chart.rows.length ? commsimTimeline : commsimPanels).option(chart, room, hidden, view); }
    // What a reader chose stays: hidden names, and scales by the label of their axis.
    function update(next) {
      var old = axes();
      chart = unpacked(next);
      axes().forEach(function (axis) {
        var same = old.find(function (o) { return o.label === axis.label && o.switch; });
        if (same && axis.switch) axis.scale = same.scale;
      });
      draw();
    }
    draw();
    var width = canvas.clientWidth, waiting = 0;
    new ResizeObserver(function () { if (canvas.clientWidth !== width && !printed) { width = canvas.clientWidth; draw(); } }).observe(canvas);
    echart.on("datazoom", function () { // ticks of what is seen; all else stays, so that a drag goes on
      var now = echart.getOption().dataZoom[0];
      view = [now.start, now.end];
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(function () {
        var x = option({width: canvas.clientWidth, height: canvas.clientHeight}).xAxis;
        echart.setOption({xAxis: [].concat(x).map(function (one) { return {axisTick: one.axisTick, axisLabel: one.axisLabel}; })});
      });
    });
    echart.getZr().on("dblclick", function () { zoom(0, 100); });
    addEventListener("beforeprint", function () { printed = Math.min(element.clientWidth, 660); draw(); echart.getZr().flush(); });
    addEventListener("afterprint", function () { printed = 0; draw(); });
    return {update: update, echart: echart};
  };
})();
