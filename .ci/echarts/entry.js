// What charts.js uses of Apache ECharts, in one file: `make charts` writes commsim/report/static/echarts.js from it.
export {init, connect, use, version} from 'echarts/core';
import {use} from 'echarts/core';
import {LineChart, BarChart, ScatterChart, CustomChart, HeatmapChart} from 'echarts/charts';
import {GridComponent, TooltipComponent, LegendScrollComponent, DataZoomComponent, MarkLineComponent, AriaComponent, AxisPointerComponent, VisualMapContinuousComponent} from 'echarts/components';
import {SVGRenderer} from 'echarts/renderers';
use([LineChart, BarChart, ScatterChart, CustomChart, HeatmapChart, GridComponent, TooltipComponent, LegendScrollComponent, DataZoomComponent, MarkLineComponent, AriaComponent, AxisPointerComponent, VisualMapContinuousComponent, SVGRenderer]);
