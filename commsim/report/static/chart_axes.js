"use strict";
/* What numbers and axes of charts are: their words, their round values, what they show of their series.

   Logarithmic axes are plain axes of logarithms: ECharts zooms those in proportion, and ticks are ours. */

var commsimAxes = (function () {
  var INK = "#222222", MUTED = "#5f6068", GRID = "#e3e3e3", LINE = "#9a9a9a";
  var MOST_ABOVE = 2; // times that a bound may make an axis long, as in chart_figure.py
  var STEPS = {
    bytes: [[1099511627776, "TiB"], [1073741824, "GiB"], [1048576, "MiB"], [1024, "KiB"], [1, "B"]],
    decimal: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"]],
    s: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]],
  };
  var BELOW = 46; // pixels under a chart
  var TIP = {confine: true, borderColor: "#c4c7cf", backgroundColor: "#ffffff", padding: [6, 9], textStyle: {fontSize: 13, color: INK}, extraCssText: "max-width:28rem;white-space:normal;line-height:1.45"};
  var TEXT = {fontFamily: "system-ui, sans-serif", color: INK, fontSize: 12};

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

  function zoomOf(indices) {
    return [{type: "inside", xAxisIndex: indices, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, moveOnMouseMove: true, preventDefaultMouseMove: false, minSpan: 1, filterMode: "none"}];
  }

  return {INK: INK, MUTED: MUTED, LINE: LINE, BELOW: BELOW, TIP: TIP, TEXT: TEXT, axisOf: axisOf, escaped: escaped, format: format, given: given, place: place, setTicks: setTicks, xReach: xReach, yReach: yReach, zoomOf: zoomOf};
})();
