"use strict";
/* Draws the charts of `commsim.report.chart` with ECharts: commsimChart(element, chart) returns {update, echart}.

   A chart is panels that share x (crosshair, zoom, hover), or a timeline of spans. Its key is a row of buttons that
   hide and show; other buttons zoom and change a scale between logarithmic and linear. The wheel zooms with Ctrl, a
   drag moves, a double click shows everything again.

   Logarithmic axes are plain axes of logarithms: ECharts zooms those in proportion, and ticks are ours. */

var commsimChart = (function () {
  var INK = "#222222", MUTED = "#5f6068", GRID = "#e3e3e3", LINE = "#9a9a9a";
  var MOST_ABOVE = 2; // times that a bound may make an axis long, as in chart_figure.py
  var STEPS = {
    bytes: [[1099511627776, "TiB"], [1073741824, "GiB"], [1048576, "MiB"], [1024, "KiB"], [1, "B"]],
    decimal: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"]],
    s: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]],
  };
  var STYLE = ".chart{position:relative}.chart .canvas{width:100%}" +
    ".chart .scales,.chart .key{display:flex;flex-wrap:wrap;gap:.3rem;margin:.15rem .25rem}.chart .scales{justify-content:flex-end}" +
    ".chart button{font:13px/1.3 system-ui,sans-serif;color:#222;background:#f5f6f8;border:1px solid #c4c7cf;border-radius:4px;padding:.2rem .5rem;cursor:pointer;text-align:left}" +
    ".chart button:hover{background:#e8eaee}.chart button:focus-visible{outline:2px solid #0072b2;outline-offset:1px}" +
    ".chart .key{gap:.1rem .6rem}.chart .key button{border-color:transparent;background:none;display:inline-flex;align-items:center;gap:.4rem}" +
    ".chart .key button[aria-pressed=false]{color:#5f6068;text-decoration:line-through}.chart .key svg{width:24px;height:12px;min-width:24px;flex:none}" +
    ".chart .note{font:12px/1.3 system-ui,sans-serif;color:#5f6068;margin:.2rem .5rem}" +
    "@media print{.chart .scales{display:none}.chart .key button[aria-pressed=false]{display:none}}";

  function digits(value) { return String(parseFloat(value.toPrecision(4))); }

  function plain(value) {
    var size = Math.abs(value);
    if (size < 1e-12) return "0"; // what rounding leaves of a zero
    if (size >= 1e9 || size < 1e-3) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : digits(value);
  }

  function format(value, unit) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    var steps = STEPS[unit];
    if (!steps) return plain(value) + (unit ? " " + unit : "");
    if (value === 0) return "0 " + (unit === "s" ? "s" : "B");
    if (unit === "bytes") { // in powers of ten where those say it in three digits and powers of two do not in four
      var two = inUnit(value, steps, 4), ten = inUnit(value, STEPS.decimal, 3);
      return two.exact || !ten.exact || value < 1e6 ? two.text : ten.text;
    }
    return inUnit(value, steps, 4).text;
  }

  function inUnit(value, steps, most) {
    var step = steps.find(function (s) { return Math.abs(value) >= 0.9999 * s[0]; }) || steps[steps.length - 1];
    var number = parseFloat((value / step[0]).toPrecision(most));
    return {text: number + " " + step[1], exact: number * step[0] === value};
  }

  function escaped(text) {
    return String(text).replace(/[&<>"']/g, function (c) { return "&#" + c.charCodeAt(0) + ";"; });
  }

  // Where a value stands on its axis; null where it cannot.
  function place(axis, value) {
    if (value === null || value === undefined || typeof value !== "number") return value === undefined ? null : value;
    return axis.scale === "log" ? (value > 0 ? Math.log2(value) : null) : value;
  }
  function valueAt(axis, at) { return axis.scale === "log" ? Math.pow(2, at) : at; }

  function niceStep(rough, bytes) {
    if (bytes) return Math.pow(2, Math.ceil(Math.log2(rough)));
    var ten = Math.pow(10, Math.floor(Math.log10(rough)));
    return ten * [1, 2, 5, 10].find(function (m) { return m * ten >= 0.9999 * rough; });
  }

  // Round values between two places of an axis, about `count` and at least two, as places; sizes are powers of two.
  function ticks(axis, low, high, count) {
    var made = [];
    for (var most = count; made.length < 2 && most < 8 * count; most *= 1.6) made = roundValues(axis, low, high, most);
    return made;
  }
  function roundValues(axis, low, high, count) {
    var made = [], edge = 1e-9 * (high - low), k;
    if (axis.scale !== "log") {
      var step = niceStep((high - low) / Math.max(1, count) || 1, axis.unit === "bytes");
      for (k = Math.ceil((low - edge) / step); k * step <= high + edge; k++) made.push(k * step);
      return made;
    }
    if (axis.unit === "bytes" || axis.base === 2) {
      var every = [1, 2, 5, 10, 20].find(function (e) { return (high - low) / e <= count; }) || 40;
      for (k = Math.ceil((low - edge) / every); k * every <= high + edge; k++) made.push(k * every);
      return made;
    }
    var tens = Math.log10(2), decades = (high - low) * tens;
    var wide = decades > count ? Math.ceil(decades / count) : 1;
    var of = decades * 3 <= count + 1 ? [1, 2, 5] : decades * 2 <= count ? [1, 3] : [1];
    if (decades < 0.8) return roundValues({scale: "linear", unit: axis.unit}, Math.pow(2, low), Math.pow(2, high), count).filter(function (v) { return v > 0; }).map(Math.log2);
    for (k = Math.floor(low * tens); k <= high * tens + 1e-9; k++) {
      if (k % wide) continue;
      of.forEach(function (m) { var at = Math.log2(m * Math.pow(10, k)); if (at >= low - edge && at <= high + edge) made.push(at); });
    }
    return made;
  }

  function axisOf(axis, isX) {
    var option = {
      type: axis.scale === "category" ? "category" : "value", axisLine: {show: isX, onZero: false, lineStyle: {color: LINE}}, axisTick: {show: isX, lineStyle: {color: LINE}},
      splitLine: {show: !isX, lineStyle: {color: GRID}}, nameTextStyle: {color: INK},
      axisLabel: {color: INK, hideOverlap: true, margin: 6}, axisPointer: {label: {show: false}},
    };
    if (option.type === "category") option.data = axis.categories;
    else option.axisLabel.formatter = function (at) { return format(valueAt(axis, at), axis.unit); };
    return option;
  }

  function setTicks(option, axis, low, high, count) {
    if (option.type === "category") return;
    var at = ticks(axis, low, high, count);
    option.axisTick.customValues = at;
    option.axisLabel.customValues = at;
  }

  function extent(values) {
    var known = values.filter(function (v) { return typeof v === "number" && isFinite(v); });
    return known.length ? [known.reduce(function (a, b) { return Math.min(a, b); }), known.reduce(function (a, b) { return Math.max(a, b); })] : null;
  }

  function xReach(chart) {
    var every = [];
    chart.panels.forEach(function (panel) { panel.series.forEach(function (s) { s.x.forEach(function (x) { every.push(place(chart.x, x)); }); }); });
    var reach = extent(every) || [0, 1], room = chart.x.scale === "log" ? 0.25 : 0;
    if (chart.x.scale !== "log" && chart.panels.some(function (p) { return p.series.some(function (s) { return s.look === "points"; }); })) room = 0.04 * (reach[1] - reach[0] || 1);
    if (reach[1] - reach[0] <= (chart.x.scale === "log" ? 0.015 : 0)) room = chart.x.scale === "log" ? 1 : 0.5; // all at one place
    var labelled = chart.panels.some(function (p) { return p.series.some(function (s) { return s.labels.length; }); });
    return [given(chart.x, chart.x.low, reach[0] - room), given(chart.x, chart.x.high, reach[1] + (labelled ? 4 : 1) * room)];
  }
  function given(axis, value, otherwise) {
    var at = value === null || value === undefined ? null : place(axis, value);
    return at === null ? otherwise : at;
  }

  // What a y axis shows: all series that are shown with their bands; of bounds (dashed) what makes it little longer.
  function yReach(panel, hidden) {
    var shown = panel.series.filter(function (s) { return !hidden[s.name]; }), inner = [], bounds = [], sums = {};
    if (!shown.length) shown = panel.series;
    shown.forEach(function (s) {
      (s.look === "dashed" ? bounds : inner).push.apply(s.look === "dashed" ? bounds : inner, s.y);
      if (!hidden[panel.band]) inner.push.apply(inner, s.low.concat(s.high));
      if (panel.stacked && s.look === "bars") s.x.forEach(function (x, k) { sums[x] = (sums[x] || 0) + (s.y[k] || 0); });
    });
    inner = inner.concat(Object.keys(sums).map(function (x) { return sums[x]; }));
    var at = function (v) { return place(panel.y, v); };
    var reach = extent(inner.map(at)), outer = extent(bounds.map(at)) || reach || [0, 1];
    reach = reach || outer;
    var low, high, log = panel.y.scale === "log", more = log ? Math.log2(MOST_ABOVE) : 0;
    if (log) {
      low = Math.min(reach[0], Math.max(outer[0], reach[0] - 4 * more)) - 0.2;
      high = Math.max(reach[1], Math.min(outer[1], reach[1] + more)) + 0.2;
    } else {
      low = Math.min(0, reach[0], outer[0]);
      high = 1.06 * Math.max(reach[1], Math.min(outer[1], MOST_ABOVE * reach[1]));
    }
    low = given(panel.y, panel.y.low, low);
    high = given(panel.y, panel.y.high, high);
    return high > low ? [low, high] : [low, low + 1];
  }

  function area(index, id, draw) {
    return {id: id, type: "custom", xAxisIndex: index, yAxisIndex: index, silent: true, z: 1, clip: true, tooltip: {show: false}, data: [0], encode: {x: -1, y: -1}, renderItem: draw};
  }

  function bandOf(chart, panel, series, index, id) {
    var at = [], y = panel.y;
    series.x.forEach(function (x, k) {
      if (place(y, series.low[k]) !== null && place(y, series.high[k]) !== null) at.push(k);
    });
    return area(index, id, function (params, api) {
      var point = function (of) { return function (k) { return api.coord([place(chart.x, series.x[k]), place(y, of[k])]); }; };
      var points = at.map(point(series.high)).concat(at.slice().reverse().map(point(series.low)));
      return {type: "polygon", shape: {points: points}, style: {fill: series.colour, opacity: 0.17}};
    });
  }

  function stripe(index, id, colour, opacity, corners) {
    return area(index, id, function (params, api) {
      var box = params.coordSys, ends = corners(api, box);
      return {type: "rect", shape: {x: ends[0], y: ends[1], width: ends[2] - ends[0], height: ends[3] - ends[1]}, style: {fill: colour, opacity: opacity}, z2: -10};
    });
  }

  var SYMBOLS = ["circle", "rect", "triangle", "diamond"];

  // Rows for the names of marks, so that they do not run into each other (-1: no room), and which stand to the left.
  function rowsOf(chart, marks, seen, wide) {
    var ends = [-Infinity, -Infinity];
    return marks.map(function (mark) {
      var at = (place(chart.x, mark.x) - seen[0]) / (seen[1] - seen[0]) * wide, long = 5.9 * mark.text.length + 6;
      var left = at + long > wide + 24, from = left ? at - long : at - 3, row = ends[0] <= from ? 0 : ends[1] <= from ? 1 : -1;
      if (row >= 0 && mark.text) ends[row] = left ? at : at + long;
      return {row: row, left: left};
    });
  }

  function seriesOf(chart, panel, index, hidden, stretch, rows, apart) {
    var all = [], points = 0;
    panel.shades.forEach(function (shade, i) {
      if (hidden[shade.text]) return;
      all.push(stripe(index, index + "-" + i + "-shade", shade.colour, 1, function (api, box) {
        var x = stretch[0], top = api.coord([x, place(panel.y, shade.high)])[1], bottom = api.coord([x, place(panel.y, shade.low)])[1];
        return [box.x, Math.max(top, box.y), box.x + box.width, Math.min(bottom, box.y + box.height)];
      }));
    });
    panel.marks.forEach(function (mark, i) {
      if (mark.to === null || mark.to === undefined) return;
      all.push(stripe(index, index + "-" + i + "-stretch", mark.colour || LINE, 0.09, function (api, box) {
        var y = panel.y.scale === "log" ? 0 : 1;
        return [api.coord([place(chart.x, mark.x), y])[0], box.y, api.coord([place(chart.x, mark.to), y])[0], box.y + box.height];
      }));
    });
    var marks = panel.marks.map(function (mark, i) {
      var stretched = mark.to !== null && mark.to !== undefined;
      return {xAxis: place(chart.x, mark.x), lineStyle: {opacity: stretched ? 0 : 1}, label: {show: !!mark.text && rows[i].row >= 0, formatter: mark.text, rotate: 0, position: "end", align: rows[i].left ? "right" : "left", color: MUTED, fontSize: 11, distance: 3 + 13 * rows[i].row}};
    });
    all.push({id: index + "-marks", type: "line", xAxisIndex: index, yAxisIndex: index, data: [], silent: true, tooltip: {show: false}, markLine: {symbol: "none", silent: true, animation: false, lineStyle: {color: LINE, type: "dotted", width: 1.2}, data: marks}});
    var ends = [];
    // Names at the ends of lines that would run into each other stand in the key alone.
    function free(series) {
      var at = place(panel.y, series.y[series.y.length - 1]), far = at === null || ends.some(function (e) { return Math.abs(e - at) < apart; });
      if (!far) ends.push(at);
      return !far;
    }
    panel.series.forEach(function (series, i) {
      var shape = SYMBOLS[(series.look === "points" ? points++ : 0) % 4];
      if (hidden[series.name]) return;
      if (series.low.length && !hidden[panel.band]) all.push(bandOf(chart, panel, series, index, index + "-" + i + "-band"));
      var isPoints = series.look === "points", dashed = series.look === "dashed", few = series.x.length <= 80;
      all.push({
        id: index + "-" + i, name: series.name, type: series.look === "bars" ? "bar" : "line", xAxisIndex: index, yAxisIndex: index, z: dashed ? 2 : isPoints ? 4 : 3,
        data: series.x.map(function (x, k) {
          var at = place(chart.x, x), value = [at, place(panel.y, series.y[k])], text = series.labels[k];
          if (!text || series.look === "bars" || text.length < 7 || at < stretch[0] + 0.45 * (stretch[1] - stretch[0])) return value;
          return {value: value, label: {position: "left"}}; // where there is room
        }), connectNulls: false, clip: true, animation: false,
        stack: panel.stacked && series.look === "bars" ? "bars" + index : undefined, barMaxWidth: 46, step: series.look === "steps" ? "end" : false,
        showSymbol: isPoints || (few && !dashed && series.look !== "steps"), symbol: shape, symbolSize: isPoints ? 8 : 4.5,
        itemStyle: isPoints ? {color: "#ffffff", borderColor: series.colour, borderWidth: 2} : {color: series.colour},
        lineStyle: {color: series.colour, width: isPoints ? 0 : dashed ? 1.3 : 2, type: dashed ? "dashed" : "solid"}, emphasis: {disabled: !isPoints, scale: 1.3},
        label: {show: series.labels.length > 0, position: series.look === "bars" ? "top" : "right", color: INK, fontSize: 11, backgroundColor: series.look === "bars" ? undefined : "rgba(255,255,255,0.8)", formatter: function (item) { return series.labels[item.dataIndex] || ""; }},
        endLabel: {show: series.named && free(series), formatter: series.name, color: INK, fontSize: 11, distance: 4},
      });
    });
    return all;
  }

  function hover(chart) {
    return function (items) {
      var list = (Array.isArray(items) ? items : [items]).filter(function (item) { return item.seriesType !== "custom" && /^\d+-\d+$/.test(item.seriesId); });
      if (!list.length) return "";
      var of = list[0].seriesId.split("-"), x = chart.panels[+of[0]].series[+of[1]].x[list[0].dataIndex];
      var head = "<b>" + escaped(format(x, chart.x.unit)) + "</b>" + (chart.x.unit === "bytes" ? "" : " " + escaped(chart.x.label));
      var last = "";
      var lines = list.map(function (item) {
        var at = item.seriesId.split("-"), panel = chart.panels[+at[0]], series = panel.series[+at[1]], k = item.dataIndex;
        if (series.y[k] === null || series.y[k] === undefined) return "";
        var unit = panel.y.unit ? "" : " " + (panel.y.label.match(/\(([^)]*)\)/) || ["", ""])[1];
        var text = format(series.y[k], panel.y.unit) + unit;
        if (series.low.length && series.low[k] !== null) text += " (" + format(series.low[k], panel.y.unit) + " to " + format(series.high[k], panel.y.unit) + ")";
        var note = series.notes[k] ? "<br><span style='color:#5f6068;padding-left:1.1em'>" + escaped(series.notes[k]) + "</span>" : "";
        var above = chart.panels.length > 1 && last !== at[0] ? "<span style='color:#5f6068'>" + escaped(panel.y.label) + "</span><br>" : "";
        last = at[0];
        return above + '<span style="color:' + escaped(series.colour) + '">\u25cf</span> ' + escaped(series.name) + ": <b>" + escaped(text) + "</b>" + note;
      });
      return [head].concat(lines.filter(Boolean)).join("<br>");
    };
  }

  var TIP = {confine: true, borderColor: "#c4c7cf", backgroundColor: "#ffffff", padding: [6, 9], textStyle: {fontSize: 13, color: INK}, extraCssText: "max-width:28rem;white-space:normal;line-height:1.45"};
  var TEXT = {fontFamily: "system-ui, sans-serif", color: INK, fontSize: 12};

  function zoomOf(indices) {
    return [{type: "inside", xAxisIndex: indices, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, moveOnMouseMove: true, preventDefaultMouseMove: false, minSpan: 1, filterMode: "none"}];
  }

  var LEFT = 62, ABOVE = 38, MARKED = 18, BELOW = 46; // pixels; MARKED: more above a panel with marks
  function marked(panel) { return panel.marks.some(function (mark) { return mark.text; }) ? MARKED : 0; }
  function above(chart) { return chart.panels.reduce(function (sum, panel) { return sum + ABOVE + marked(panel); }, 0); }

  function panelsOption(chart, size, hidden, view) {
    var total = chart.panels.reduce(function (sum, panel) { return sum + panel.height; }, 0), count = chart.panels.length;
    var longest = 0;
    chart.panels.forEach(function (p) { p.series.forEach(function (s) { if (s.named) longest = Math.max(longest, s.name.length); }); });
    var right = Math.max(22, Math.min(14 + 6.3 * longest, 0.3 * size.width)), wide = size.width - LEFT - right, stretch = xReach(chart);
    var room = size.height - above(chart) - BELOW, top = 0;
    var seen = [stretch[0] + view[0] / 100 * (stretch[1] - stretch[0]), stretch[0] + view[1] / 100 * (stretch[1] - stretch[0])];
    var option = {
      animation: false, textStyle: TEXT, tooltip: Object.assign({trigger: "axis", formatter: hover(chart), axisPointer: {type: "line", snap: true, lineStyle: {color: MUTED, type: "solid"}}}, TIP),
      axisPointer: {link: [{xAxisIndex: "all"}], triggerEmphasis: false}, grid: [], xAxis: [], yAxis: [], series: [],
      dataZoom: zoomOf(chart.panels.map(function (_, i) { return i; })),
    };
    Object.assign(option.dataZoom[0], {start: view[0], end: view[1]});
    chart.panels.forEach(function (panel, i) {
      var height = room * panel.height / total, last = i === count - 1, x = axisOf(chart.x, true), y = axisOf(panel.y, false), reach = yReach(panel, hidden);
      var rows = rowsOf(chart, panel.marks, seen, wide);
      top += ABOVE + marked(panel);
      option.grid.push({left: LEFT, width: wide, top: top, height: height, outerBoundsMode: "none"});
      top += height;
      x.gridIndex = y.gridIndex = i;
      x.axisLabel.show = last;
      if (last) Object.assign(x, {name: chart.x.label, nameLocation: "middle", nameGap: 26});
      if (x.type === "value") Object.assign(x, {min: stretch[0], max: stretch[1]});
      setTicks(x, chart.x, seen[0], seen[1], Math.max(2, Math.floor(wide / (size.width < 560 ? 58 : 74))));
      Object.assign(y, {name: panel.y.label, nameLocation: "end", nameGap: 18 + marked(panel), min: reach[0], max: reach[1]});
      y.nameTextStyle = {color: INK, align: "left", padding: [0, 0, 0, 8 - LEFT]};
      setTicks(y, panel.y, reach[0], reach[1], Math.max(2, Math.floor(height / 32)));
      option.xAxis.push(x);
      option.yAxis.push(y);
      option.series = option.series.concat(seriesOf(chart, panel, i, hidden, stretch, rows, 13 / height * (reach[1] - reach[0])));
    });
    return option;
  }

  function timelineOption(chart, size, hidden, view) {
    var longest = chart.rows.reduce(function (most, row) { return Math.max(most, row.length); }, 0);
    var left = Math.min(20 + 7 * longest, size.width < 560 ? 96 : 260), high = Math.max.apply(null, chart.spans.map(function (s) { return s.end; }).concat(chart.x.high || 0));
    var names = {}, spans = chart.spans.filter(function (s) { return !hidden[names[s.colour]]; });
    chart.key.forEach(function (pair) { names[pair[1]] = pair[0]; });
    spans = chart.spans.filter(function (s) { return !hidden[names[s.colour]]; });
    var x = Object.assign(axisOf(chart.x, true), {min: chart.x.low || 0, max: high, name: chart.x.label, nameLocation: "middle", nameGap: 26});
    var from = x.min + view[0] / 100 * (high - x.min), to = x.min + view[1] / 100 * (high - x.min);
    setTicks(x, chart.x, from, to, Math.max(2, Math.floor((size.width - left) / 80)));
    var option = {
      animation: false, textStyle: TEXT, grid: {left: left, right: 26, top: 8, bottom: BELOW, outerBoundsMode: "none"}, dataZoom: zoomOf([0]), xAxis: x,
      tooltip: Object.assign({trigger: "item", formatter: function (item) {
        var span = spans[item.dataIndex], long = format(span.end - span.start, chart.x.unit);
        return "<b>" + escaped(chart.rows[span.row]) + "</b>: " + escaped(span.text) + "<br>" + escaped(format(span.start, chart.x.unit)) + " to " +
          escaped(format(span.end, chart.x.unit)) + ": <b>" + escaped(long) + "</b>" + (span.note ? "<br>" + escaped(span.note) : "");
      }}, TIP),
      yAxis: {type: "category", inverse: true, data: chart.rows, axisTick: {show: false}, axisLine: {lineStyle: {color: LINE}}, axisLabel: {color: INK, width: left - 14, overflow: "truncate"}},
      series: [{
        type: "custom", encode: {x: [0, 2], y: 1}, clip: true, data: spans.map(function (span) { return {value: [span.start, span.row, span.end]}; }),
        renderItem: function (params, api) {
          var span = spans[params.dataIndex], row = api.size([0, 1])[1], box = params.coordSys;
          var start = Math.max(api.coord([span.start, span.row])[0], box.x), end = Math.min(api.coord([span.end, span.row])[0], box.x + box.width);
          if (end < start) return null;
          var middle = api.coord([span.start, span.row])[1], width = Math.max(0.6, end - start), height = (span.high - span.low) * row;
          var item = {type: "rect", shape: {x: start, y: middle + (0.5 - span.high) * row, width: width, height: height}, style: {fill: span.colour, stroke: "#ffffff", lineWidth: width > 4 ? 0.6 : 0}};
          if (width > 7 * span.text.length + 6 && height > 11) {
            item.textContent = {style: {text: span.text, fill: inkOn(span.colour), fontSize: 11}};
            item.textConfig = {position: "inside"};
          }
          return item;
        },
      }],
    };
    Object.assign(option.dataZoom[0], {start: view[0], end: view[1]});
    return option;
  }

  // White or black, whichever can be read on a colour (relative luminance of WCAG 2).
  function inkOn(colour) {
    var light = [1, 3, 5].map(function (k) { var c = parseInt(colour.slice(k, k + 2), 16) / 255; return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); });
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.2 ? "#000000" : "#ffffff";
  }

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
    function option(room) { return (chart.rows.length ? timelineOption : panelsOption)(chart, room, hidden, view); }
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
