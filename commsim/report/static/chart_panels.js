"use strict";
/* Panels that share x, as options of ECharts: curves, points, bars and bands over one y axis each. */

var commsimPanels = (function () {
  var {INK, MUTED, LINE, BELOW, TIP, TEXT, axisOf, escaped, format, place, setTicks, xReach, yReach, zoomOf} = commsimAxes;

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

  var LEFT = 62, ABOVE = 38, MARKED = 18; // pixels; MARKED: more above a panel with marks
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

  return {SYMBOLS: SYMBOLS, above: above, option: panelsOption};
})();
