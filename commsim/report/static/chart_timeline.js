"use strict";
/* A timeline as options of ECharts: spans in rows. */

var commsimTimeline = (function () {
  var {LINE, INK, BELOW, TIP, TEXT, axisOf, escaped, format, setTicks, zoomOf} = commsimAxes;

  function timelineOption(chart, size, hidden, view) {
    var longest = chart.rows.reduce(function (most, row) { return Math.max(most, row.length); }, 0);
    var left = Math.min(20 + 7 * longest, size.width < 560 ? Math.max(96, 0.4 * size.width) : 260), high = Math.max.apply(null, chart.spans.map(function (s) { return s.end; }).concat(chart.x.high || 0));
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

  return {option: timelineOption};
})();
