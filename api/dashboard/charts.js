// Figures over the steps of a job, drawn by uPlot, which the page loads before.

import { find, html, ms, percent, write } from "./markup.js";

const HEIGHT = 190;
const FIRST_HEIGHT = 240;

/** The charts, and their series by field of a step. */
const CHARTS = [
  {
    title: "Time of each step, ms",
    first: true,
    show: ms,
    series: [
      { name: "predicted", field: "predicted_ms", look: "line", color: "--ours" },
      { name: "measured", field: "measured_ms", look: "points", color: "--other" },
      { name: "lower bound", field: "lower_bound_ms", look: "dotted", color: "--soft" },
    ],
  },
  {
    title: "Optimality gap, at most",
    show: percent,
    series: [{ name: "gap", field: "gap", look: "line", color: "--ours" }],
  },
  {
    title: "Planning each step, ms (logarithmic)",
    show: ms,
    logarithmic: true, // a step that took long must not flatten the others
    series: [{ name: "planning", field: "planning_ms", look: "line", color: "--ours" }],
  },
];

/** Distances of the marks below a chart: steps are whole. */
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((k) => k * 10 ** power)).flat();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function plotted({ look, color: name }) {
  const stroke = color(name);
  // One step, or one between gaps, has no line: a point shows it.
  const alone = { show: (plot, _, first, last) => first === last, size: 6 };
  if (look === "points") return { stroke, paths: () => null, points: { show: true, size: 6, width: 1.5 } };
  if (look === "dotted") return { stroke, width: 1.5, dash: [2, 4], points: alone };
  return { stroke, width: 2, points: alone };
}

/** The y scale of a chart, from 0 up or by logarithm. */
function scale({ logarithmic }) {
  if (!logarithmic) return { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] };
  const power = (value) => 10 ** Math.floor(Math.log10(value));
  // Ends of one digit: the lines of the grid count from the lower.
  const ends = (low, high) => [Math.floor(low / power(low)) * power(low), (Math.floor(high / power(high)) + 1) * power(high)];
  return { distr: 3, range: (_, low, high) => (low > 0 ? ends(low, high) : [1, 10]) };
}

/** The charts in `place`; `pick(index)` is called when a step is clicked. */
export class Charts {
  #place;
  #pick;
  #drawn = [];
  #items = [];
  #chosen = -1;

  constructor(place, pick) {
    this.#place = place;
    this.#pick = pick;
    new ResizeObserver(() => this.#resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#build());
    this.#build();
  }

  #build() {
    for (const { plot } of this.#drawn) plot.destroy();
    this.#place.replaceChildren();
    this.#drawn = CHARTS.map((chart) => this.#chart(chart));
    this.show(this.#items, this.#chosen);
  }

  #chart(chart) {
    const legend = html("ul", { class: "legend" });
    const values = chart.series.map(({ name, look, color: mark }) => {
      const value = html("b");
      const swatch = html("span", { class: `swatch ${look}` });
      swatch.style.setProperty("--mark", `var(${mark})`);
      legend.append(html("li", {}, swatch, `${name} `, value));
      return value;
    });
    const drawing = html("div");
    const caption = html("figcaption", {}, html("h3", {}, chart.title));
    const figure = html("figure", { class: chart.first ? "first" : null }, caption, drawing, legend);
    this.#place.append(figure);
    const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 },
      ticks: { stroke: color("--rule"), width: 1 } };
    const plot = new uPlot(
      {
        width: Math.max(drawing.clientWidth, 100),
        height: chart.first ? FIRST_HEIGHT : HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: "steps" }, drag: { x: false, y: false }, y: false },
        scales: { x: { time: false }, y: scale(chart) },
        axes: [{ ...axis, size: 28, incrs: WHOLE }, { ...axis, size: 62, values: (_, splits) => splits.map((v) => (v === null ? "" : chart.show(v))) }],
        series: [{}, ...chart.series.map(plotted)],
        hooks: {
          draw: [(self) => this.#mark(self)],
          setCursor: [(self) => this.#describe(chart, values, self.cursor.idx)],
        },
      },
      [[], ...chart.series.map(() => [])],
      drawing,
    );
    plot.over.addEventListener("click", () => {
      if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) this.#pick(plot.cursor.idx);
    });
    return { chart, plot, drawing, values, figure };
  }

  /** Draw `items`, steps in ascending order, and mark the one at index `chosen`. */
  show(items, chosen) {
    const changed = items !== this.#items;
    [this.#items, this.#chosen] = [items, chosen];
    const steps = items.map((item) => item.step);
    for (const { chart, plot, values, figure } of this.#drawn) {
      if (changed || plot.data[0].length !== steps.length) {
        plot.setData([steps, ...chart.series.map(({ field }) => items.map((item) => item[field]))]);
      } else {
        plot.redraw(false);
      }
      this.#describe(chart, values, plot.cursor.idx);
      const label = `${chart.title}, steps ${steps[0]} to ${steps.at(-1)}; the table below has them`;
      find("canvas", figure)?.setAttribute("role", "img");
      find("canvas", figure)?.setAttribute("aria-label", label);
    }
  }

  #describe(chart, values, hovered) {
    const item = this.#items[hovered ?? this.#chosen];
    chart.series.forEach(({ field }, at) => write(values[at], chart.show(item?.[field])));
  }

  #mark(plot) {
    const item = this.#items[this.#chosen];
    if (!item) return;
    const { ctx, bbox } = plot;
    const x = Math.round(plot.valToPos(item.step, "x", true));
    ctx.save();
    ctx.strokeStyle = color("--ink");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([]); // the series drawn last may have set another
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  #resize() {
    for (const { chart, plot, drawing } of this.#drawn) {
      const width = Math.max(drawing.clientWidth, 100);
      if (width !== plot.width) plot.setSize({ width, height: chart.first ? FIRST_HEIGHT : HEIGHT });
    }
  }
}
