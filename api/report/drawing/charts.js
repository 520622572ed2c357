// Charts of a page: each element of class `chart` has its description as JSON, uPlot draws it.
"use strict";
{
  const COLORS = ["--ours", "--other", "--fifth", "--switch", "--soft"];
  const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [14, 4], [5, 2, 2, 2, 2, 2]];
  const FONT = "12px system-ui, sans-serif";
  const LINE = 13; // px of a line of text
  const SIZES = { M: 2 ** 20, K: 2 ** 10 };
  const NAMES = 0.42; // of a chart's width that names may take

  const digits = (count) => new Intl.NumberFormat("en", { minimumFractionDigits: count, maximumFractionDigits: count });
  const [whole, tenths, cents] = [0, 1, 2].map(digits);
  const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const WRITTEN = {
    whole: (value) => whole.format(value),
    ms: (value) => tenths.format(value),
    percent: (value) => `${cents.format(100 * value)} %`,
    factor: (value) => `${cents.format(value)}×`,
    rough: (value) => rough.format(value),
    tokens: (value) => {
      const unit = ["M", "K"].find((name) => value > 0 && value % SIZES[name] === 0);
      return unit ? `${value / SIZES[unit]}${unit}` : whole.format(value);
    },
  };

  const measure = document.createElement("canvas").getContext("2d");
  measure.font = FONT;
  const textWidth = (text) => measure.measureText(text).width;

  /** Powers of two in [low, high], as many as there is room for. */
  function powers(low, high, width) {
    const first = Math.ceil(Math.log2(low));
    const count = Math.floor(Math.log2(high)) - first + 1;
    const every = Math.max(1, Math.ceil((count * 46) / width));
    return Array.from({ length: Math.ceil(count / every) }, (_, at) => 2 ** (first + at * every));
  }

  function series({ name, look, marks }, at, color, write) {
    const stroke = color(COLORS[at % COLORS.length]);
    const points = { show: true, size: 7, width: 1.5, fill: color("--page") };
    const looks = {
      line: { stroke, width: 1.75, dash: DASHES[at % DASHES.length], points: { ...points, filter: () => marks } },
      hollow: { stroke, paths: () => null, points: { ...points, size: 8 } },
      filled: { stroke, paths: () => null, points: { ...points, size: 8, fill: stroke } },
      large: { stroke, paths: () => null, points: { ...points, size: 13 } },
      bars: { stroke, fill: stroke, paths: uPlot.paths.bars({ size: [0.72, 40] }), points: { show: false } },
      area: { stroke, fill: color("--forward"), width: 1, points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }) },
      dashed: { stroke: color("--ink"), width: 1, dash: [4, 3], points: { show: false } },
      solid: { stroke: color("--ink"), width: 2, points: { show: false } },
    };
    return { label: name, value: (_, value) => writeKnown(value, write), pxAlign: 0, ...looks[look] };
  }

  const writeKnown = (value, write) => (value === null || value === undefined ? "" : write(value));

  /** What writes an axis's values: their names if it has some. */
  const writer = ({ names, written }) => (names.length ? (value) => names[value] ?? "" : WRITTEN[written]);

  function axis(described, across, color) {
    const { label, names, log } = described;
    const line = { stroke: color("--rule"), width: 1 };
    const values = (_, splits) => splits.map((value) => writeKnown(value, writer(described)));
    const look = { label, values, stroke: color("--soft"), grid: line, ticks: line, font: FONT, labelFont: FONT, labelSize: 20 };
    if (!across) {
      const widest = (_, written) => Math.max(...(written ?? [""]).map(textWidth)) + 18;
      return { ...look, size: widest };
    }
    const splits = (plot, _, low, high) => (log ? powers(low, high, plot.width) : names.map((_, at) => at));
    return { ...look, size: 28, ...(log || names.length ? { splits, filter: (_, found) => found } : { incrs: WHOLE }) };
  }

  /** Steps and ranks are whole. */
  const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((k) => k * 10 ** power)).flat();

  /** Write each line's name at its end, where no other name is. */
  function nameEnds(plot, color) {
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    const taken = [];
    const ends = plot.series.slice(1).flatMap(({ label, show }, at) => {
      const values = plot.data[at + 1];
      const last = values.findLastIndex((value) => value !== null);
      if (!show || last < 0) return [];
      const x = plot.valToPos(plot.data[0][last], "x", true) / ratio + 9;
      return [{ label, x, y: plot.valToPos(values[last], "y", true) / ratio, width: textWidth(label) }];
    });
    ctx.save();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = FONT;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth] = [color("--ink"), color("--page"), 3];
    ctx.setLineDash([]); // the series drawn last may have set another
    for (const { label, x, y, width } of ends.sort((one, other) => one.y - other.y)) {
      const free = (at) => taken.every((box) => Math.abs(box.y - at) >= LINE || x > box.end || x + width < box.x);
      const place = [0, 1, -1, 2, -2, 3, -3].map((lines) => y + (lines * LINE) / 2).find(free);
      if (place === undefined) continue;
      taken.push({ x, end: x + width, y: place });
      ctx.strokeText(label, x, place);
      ctx.fillText(label, x, place);
    }
    ctx.restore();
  }

  /** Limits of one digit: the lines of a logarithmic grid count from the lower. */
  function widen([low, high]) {
    const power = (value) => 10 ** Math.floor(Math.log10(value));
    return [Math.floor(low / power(low)) * power(low), Math.ceil(high / power(high)) * power(high)];
  }

  function options(chart, width, color) {
    const { across, up, height } = chart;
    const widest = Math.max(0, ...chart.series.map(({ name }) => textWidth(name)));
    const named = chart.names_at_ends && widest < NAMES * width;
    const scale = ({ limits, log }, base) => ({ time: false, distr: log ? 3 : 1, log: base, range: () => limits });
    return {
      width,
      height,
      padding: [10, named ? widest + 14 : 16, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, focus: { prox: 30 } },
      focus: { alpha: 0.25 },
      legend: { markers: { dash: (plot, at) => (plot.series[at].dash?.length ? "dashed" : "solid") } },
      scales: { x: scale(across, 2), y: scale(up.log ? { ...up, limits: widen(up.limits) } : up, 10) },
      axes: [axis(across, true, color), axis(up, false, color)],
      series: [
        { label: across.label, value: (_, value) => writeKnown(value, writer(across)) },
        ...chart.series.map((one, at) => series(one, at, color, WRITTEN[up.written])),
      ],
      hooks: { draw: named ? [(plot) => nameEnds(plot, color)] : [] },
    };
  }

  function show(place) {
    const chart = JSON.parse(place.querySelector("script").textContent);
    const color = (name) => getComputedStyle(place).getPropertyValue(name).trim();
    const data = [chart.places, ...chart.series.map(({ values }) => values)];
    let plot;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(options(chart, Math.max(place.clientWidth, 200), color), data, place);
      const canvas = place.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", chart.about);
    };
    draw();
    new ResizeObserver(() => place.clientWidth !== plot.width && draw()).observe(place);
    for (const media of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(media).addEventListener("change", draw);
    }
    // A page may choose its theme by an attribute.
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  }

  document.querySelectorAll(".chart").forEach(show);
}
