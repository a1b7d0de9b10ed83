"use strict";
/* Draws the charts of `commsim.report.chart` with ECharts: commsimChart(element, chart) returns {update, echart}.

   A chart is panels that share x (crosshair, zoom, hover), or a timeline of spans. A click on a name in the legend
   hides it; buttons change a scale between logarithmic and linear; a double click shows everything again. */

var commsimChart = (function () {
  var INK = "#222222", MUTED = "#5f6068", GRID = "#e3e3e3";
  var STEPS = {
    bytes: [[1099511627776, "TiB"], [1073741824, "GiB"], [1048576, "MiB"], [1024, "KiB"], [1, "B"]],
    s: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]],
  };

  function digits(value) { return String(parseFloat(value.toPrecision(4))); }

  function plain(value) {
    if (value === 0) return "0";
    var size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : digits(value);
  }

  function format(value, unit) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    var steps = STEPS[unit];
    if (!steps) return plain(value) + (unit ? " " + unit : "");
    if (value === 0) return "0 " + (unit === "s" ? "s" : "B");
    var step = steps.find(function (s) { return Math.abs(value) >= s[0]; }) || steps[steps.length - 1];
    return digits(value / step[0]) + " " + step[1];
  }

  function escaped(text) {
    return String(text).replace(/[&<>"']/g, function (c) { return "&#" + c.charCodeAt(0) + ";"; });
  }

  // A y value at least so far above zero that a logarithm can show it.
  function shown(axis, value) { return axis.scale === "log" && !(value > 0) ? null : value; }

  function axisOf(axis, index, chart, isX) {
    var type = axis.scale === "log" ? "log" : axis.scale === "category" ? "category" : "value";
    var option = {
      type: type, name: axis.label, nameLocation: "middle", nameGap: isX ? 30 : 58, gridIndex: index,
      nameTextStyle: {color: INK}, axisLine: {show: true, lineStyle: {color: "#9a9a9a"}}, axisTick: {show: true},
      splitLine: {show: !isX, lineStyle: {color: GRID}}, minorSplitLine: {show: false},
      axisLabel: {color: INK, hideOverlap: true, formatter: type === "category" ? undefined : function (v) { return format(v, axis.unit); }},
    };
    if (type === "log") option.logBase = isX && axis.unit === "bytes" ? 2 : 10;
    if (type === "category") option.data = axis.categories;
    if (axis.low !== null && axis.low !== undefined) option.min = axis.low;
    if (axis.high !== null && axis.high !== undefined) option.max = axis.high;
    if (type === "value" && !isX && option.min === undefined) option.scale = false;
    return option;
  }

  function xRange(chart) {
    var low = Infinity, high = -Infinity;
    chart.panels.forEach(function (panel) {
      panel.series.forEach(function (series) {
        series.x.forEach(function (x) { if (typeof x === "number") { low = Math.min(low, x); high = Math.max(high, x); } });
      });
    });
    return [low, high];
  }

  function symbolOf(look, index) { return ["circle", "rect", "triangle", "diamond"][index % 4]; }

  function seriesOf(panel, index) {
    var all = [];
    panel.series.forEach(function (series, i) {
      var at = function (values) {
        return series.x.map(function (x, k) { return [x, shown(panel.y, values[k])]; });
      };
      if (series.low.length) {
        // A band is two stacked areas: what is below it, unseen, and its height. Stacks add, also on a log axis.
        var id = index + "-" + i + "-band";
        var low = series.x.map(function (x, k) { return [x, shown(panel.y, series.low[k])]; });
        var polygon = [];
        series.x.forEach(function (x, k) { if (shown(panel.y, series.low[k]) !== null && series.high[k] !== null) polygon.push(k); });
        all.push({
          id: id, name: series.name, type: "custom", xAxisIndex: index, yAxisIndex: index, silent: true, z: 1, clip: true,
          itemStyle: {color: series.colour}, tooltip: {show: false},
          data: polygon.length ? [0] : [], encode: {x: -1, y: -1},
          renderItem: function (params, api) {
            var points = polygon.map(function (k) { return api.coord([series.x[k], series.high[k]]); });
            polygon.slice().reverse().forEach(function (k) { points.push(api.coord([series.x[k], series.low[k]])); });
            return {type: "polygon", shape: {points: points}, style: {fill: series.colour, opacity: 0.16}};
          },
        });
        void low;
      }
      var points = series.look === "points";
      all.push({
        id: index + "-" + i, name: series.name, type: series.look === "bars" ? "bar" : "line",
        xAxisIndex: index, yAxisIndex: index, z: 3, data: at(series.y), connectNulls: false,
        showSymbol: series.look !== "dashed", symbol: points ? symbolOf(series.look, i) : "circle",
        symbolSize: points ? 8 : 4, itemStyle: points ? {color: "#ffffff", borderColor: series.colour, borderWidth: 2} : {color: series.colour},
        lineStyle: {color: series.colour, width: points ? 0 : series.look === "dashed" ? 1.2 : 2, type: series.look === "dashed" ? "dashed" : "solid"},
        emphasis: {focus: "none"}, animation: false,
        markLine: i === 0 && panel.marks.length ? {
          symbol: "none", silent: true, animation: false, lineStyle: {color: "#9a9a9a", type: "dotted", width: 1},
          data: panel.marks.map(function (mark) {
            return {xAxis: mark.x, label: {show: true, formatter: mark.text, position: "insideEndTop", color: MUTED, fontSize: 11}};
          }),
        } : undefined,
      });
    });
    return all;
  }

  function hover(chart) {
    return function (items) {
      var list = Array.isArray(items) ? items : [items];
      if (!list.length) return "";
      var head = "<b>" + escaped(format(list[0].axisValue !== undefined && chart.x.scale !== "category" ? Number(list[0].axisValue) : list[0].name || list[0].axisValue, chart.x.unit)) + "</b>";
      var lines = list.filter(function (item) { return item.seriesType !== "custom" && item.value[1] !== null && item.value[1] !== undefined; }).map(function (item) {
        var place = item.seriesId.split("-"), panel = chart.panels[+place[0]], series = panel.series[+place[1]];
        var k = item.dataIndex, text = format(series.y[k], panel.y.unit);
        if (series.low.length && series.low[k] !== null) text += " (" + format(series.low[k], panel.y.unit) + " to " + format(series.high[k], panel.y.unit) + ")";
        if (series.notes.length && series.notes[k]) text += ", " + series.notes[k];
        var unit = panel.y.unit ? "" : " " + (panel.y.label.match(/\(([^)]*)\)/) || ["", ""])[1];
        return '<span style="color:' + escaped(series.colour) + '">\u25cf</span> ' + escaped(series.name) + ": <b>" + escaped(text + unit) + "</b>";
      });
      return [head].concat(lines).join("<br>");
    };
  }

  function panelsOption(chart, narrow) {
    var total = chart.panels.reduce(function (sum, panel) { return sum + panel.height; }, 0);
    var names = [], colours = {};
    chart.panels.forEach(function (panel) {
      panel.series.forEach(function (series) {
        if (names.indexOf(series.name) < 0) names.push(series.name);
      });
    });
    var top = 0, range = xRange(chart), gap = 7;
    var share = (100 - 14 - gap * (chart.panels.length - 1) - 12) / total;
    var option = {
      animation: false, textStyle: {fontFamily: "system-ui, sans-serif", color: INK}, aria: {enabled: true, label: {description: chart.title}},
      legend: {type: "scroll", bottom: 0, data: names, textStyle: {color: INK, width: narrow ? 240 : 480, overflow: "truncate"}, tooltip: {show: true}},
      tooltip: {trigger: "axis", confine: true, formatter: hover(chart), axisPointer: {type: "line", snap: true}, textStyle: {fontSize: 12}},
      axisPointer: {link: [{xAxisIndex: "all"}]},
      dataZoom: [{type: "inside", xAxisIndex: chart.panels.map(function (_, i) { return i; }), zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, filterMode: "none"}],
      grid: [], xAxis: [], yAxis: [], series: [],
    };
    top = 6;
    chart.panels.forEach(function (panel, i) {
      var height = share * panel.height, last = i === chart.panels.length - 1;
      option.grid.push({left: narrow ? 66 : 78, right: 18, top: top + "%", height: height + "%"});
      top += height + gap;
      var x = axisOf(chart.x, i, chart, true);
      if (!last) { x.axisLabel = {show: false}; x.name = ""; }
      if (x.min === undefined && isFinite(range[0])) { x.min = chart.x.scale === "log" ? range[0] / Math.SQRT2 : range[0]; x.max = chart.x.scale === "log" ? range[1] * Math.SQRT2 : range[1]; }
      option.xAxis.push(x);
      option.yAxis.push(axisOf(panel.y, i, chart, false));
      option.series = option.series.concat(seriesOf(panel, i));
    });
    void colours;
    return option;
  }

  function timelineOption(chart, narrow) {
    return {
      animation: false, textStyle: {fontFamily: "system-ui, sans-serif", color: INK}, aria: {enabled: true, label: {description: chart.title}},
      tooltip: {trigger: "item", confine: true, formatter: function (item) {
        var span = chart.spans[item.dataIndex];
        return "<b>" + escaped(chart.rows[span.row]) + ": " + escaped(span.text) + "</b><br>" + escaped(format(span.start, chart.x.unit)) + " to " +
          escaped(format(span.end, chart.x.unit)) + ": " + escaped(format(span.end - span.start, chart.x.unit)) + (span.note ? "<br>" + escaped(span.note) : "");
      }},
      grid: {left: narrow ? 70 : 110, right: 18, top: 10, bottom: 56},
      dataZoom: [{type: "inside", xAxisIndex: 0, zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, filterMode: "weakFilter"}],
      xAxis: Object.assign(axisOf(chart.x, 0, chart, true), {min: 0}),
      yAxis: {type: "category", inverse: true, data: chart.rows, axisTick: {show: false}, axisLabel: {color: INK}},
      series: [{
        type: "custom", data: chart.spans.map(function (span) { return {value: [span.start, span.row, span.end], itemStyle: {color: span.colour}}; }),
        encode: {x: [0, 2], y: 1}, clip: true,
        renderItem: function (params, api) {
          var start = api.coord([api.value(0), api.value(1)]), end = api.coord([api.value(2), api.value(1)]);
          var height = 0.72 * api.size([0, 1])[1], span = chart.spans[params.dataIndex], width = end[0] - start[0];
          var item = {type: "rect", shape: {x: start[0], y: start[1] - height / 2, width: Math.max(0.5, width), height: height}, style: {fill: span.colour, stroke: "#ffffff", lineWidth: width > 4 ? 0.5 : 0}};
          if (width > 7 * span.text.length + 6 && height > 11) item.textContent = {style: {text: span.text, fill: INK, fontSize: 11}};
          if (item.textContent) item.textConfig = {position: "inside"};
          return item;
        },
      }],
    };
  }

  // The scales that a reader may change, as buttons above the chart.
  function buttons(bar, chart, redraw) {
    bar.textContent = "";
    var axes = [[chart.x, "x"]].concat(chart.panels.map(function (panel) { return [panel.y, panel.y.label]; }));
    axes.forEach(function (pair) {
      if (!pair[0].switch) return;
      var button = document.createElement("button");
      button.type = "button";
      button.className = "scale";
      button.textContent = (pair[1] === "x" ? pair[0].label : pair[1]) + ": " + (pair[0].scale === "log" ? "logarithmic" : "linear");
      button.setAttribute("aria-pressed", pair[0].scale === "log");
      button.addEventListener("click", function () { pair[0].scale = pair[0].scale === "log" ? "linear" : "log"; redraw(); });
      bar.appendChild(button);
    });
  }

  return function (element, chart) {
    element.classList.add("chart");
    var bar = document.createElement("div"), canvas = document.createElement("div");
    bar.className = "scales";
    canvas.className = "canvas";
    element.textContent = "";
    element.appendChild(bar);
    element.appendChild(canvas);
    var echart = echarts.init(canvas, null, {renderer: "svg"});

    function draw() {
      var narrow = canvas.clientWidth < 560;
      buttons(bar, chart, draw);
      echart.setOption(chart.rows.length ? timelineOption(chart, narrow) : panelsOption(chart, narrow), {notMerge: true});
    }
    function update(next) {
      // What a reader chose stays: scales by the label of their axis, hidden names by ECharts' legend.
      var old = chart, legend = echart.getOption() && echart.getOption().legend, hidden = legend && legend[0] && legend[0].selected;
      chart = next;
      if (old.x.label === chart.x.label && old.x.switch) chart.x.scale = old.x.scale;
      chart.panels.forEach(function (panel) {
        var same = old.panels.find(function (p) { return p.y.label === panel.y.label; });
        if (same && panel.y.switch) panel.y.scale = same.y.scale;
      });
      draw();
      if (hidden) Object.keys(hidden).forEach(function (name) { if (!hidden[name]) echart.dispatchAction({type: "legendUnSelect", name: name}); });
    }
    draw();
    new ResizeObserver(function () { echart.resize(); draw(); }).observe(canvas);
    addEventListener("beforeprint", function () { echart.resize({width: Math.min(canvas.clientWidth, 680)}); });
    addEventListener("afterprint", function () { echart.resize({width: "auto"}); });
    echart.getZr().on("dblclick", function () { echart.dispatchAction({type: "dataZoom", start: 0, end: 100}); });
    return {update: update, echart: echart};
  };
})();
