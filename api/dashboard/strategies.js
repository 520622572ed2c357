// The strategy of each step as a band: which share of the GPUs runs which parallel scheme.

import { html, round, svg } from "./markup.js";

const HEIGHT = 64;
const AXIS = 20; // below the band
const LABEL = 60; // room of a step's number
const COLORS = 8;
const DEGREE = /(tp|pp|u|r)(\d+)/g;

/** GPUs of one pipeline of a scheme such as tp4.pp2. */
const gpus = (scheme) => [...scheme.matchAll(DEGREE)].reduce((all, [, , n]) => all * Number(n), 1);

/** "2×u4 + 8×tp1" as [scheme, GPUs] in the order of the text. */
const parts = (strategy) =>
  strategy === "" ? [] : strategy.split(" + ").map((part) => {
    const [times, scheme] = part.split("×");
    return [scheme, Number(times) * gpus(scheme)];
  });

/** The classes of schemes: a color for each, in the order in which they are first seen. */
export class Colors {
  #known = new Map();
  of(scheme) {
    if (!this.#known.has(scheme)) this.#known.set(scheme, this.#known.size);
    const at = this.#known.get(scheme);
    return at < COLORS ? `k${at}` : "rest";
  }
}

/** Draw the band of `items` into `figure`, the step at index `chosen` framed. */
export function drawStrategies(figure, items, chosen, colors, pick) {
  const place = figure.querySelector(".drawing");
  const width = Math.max(place.clientWidth, 100);
  const column = width / items.length;
  const runs = [];
  items.forEach(({ strategy }, at) => {
    if (runs.at(-1)?.strategy === strategy) runs.at(-1).end = at + 1;
    else runs.push({ strategy, begin: at, end: at + 1 });
  });
  const drawing = svg("svg", { width, height: HEIGHT + AXIS, role: "img",
    "aria-label": `Strategies of steps ${items[0].step} to ${items.at(-1).step}` });
  const seen = new Set();
  for (const { strategy, begin, end } of runs) {
    const found = parts(strategy);
    const all = found.reduce((sum, [, n]) => sum + n, 0) || 1;
    const about = svg("g", {}, svg("title", {},
      `${end - begin > 1 ? `steps ${items[begin].step}–${items[end - 1].step}` : `step ${items[begin].step}`}: ${strategy}`));
    let top = 0;
    for (const [scheme, n] of found) {
      seen.add(scheme);
      const height = (HEIGHT * n) / all;
      about.append(svg("rect", { x: begin * column, y: top, width: (end - begin) * column, height,
        class: colors.of(scheme), "shape-rendering": "crispEdges" }));
      top += height;
    }
    drawing.append(about);
  }
  const every = round((LABEL * items.length) / width);
  items.forEach(({ step }, at) => {
    if (step % every) return;
    const x = (at + 0.5) * column;
    const anchor = x < LABEL / 2 ? "start" : x > width - LABEL / 2 ? "end" : "middle";
    drawing.append(svg("line", { class: "axis", x1: x, x2: x, y1: HEIGHT, y2: HEIGHT + 4 }),
      svg("text", { class: "soft", x, y: HEIGHT + 16, "text-anchor": anchor }, `${step}`));
  });
  if (chosen >= 0) {
    const room = Math.max(column, 3);
    drawing.append(svg("rect", { class: "picked", x: (chosen + 0.5) * column - room / 2, y: 0,
      width: room, height: HEIGHT }));
  }
  drawing.addEventListener("click", (event) => {
    const x = event.clientX - drawing.getBoundingClientRect().left;
    pick(Math.min(items.length - 1, Math.max(0, Math.floor(x / column))));
  });
  place.replaceChildren(drawing);
  figure.querySelector(".legend").replaceChildren(...[...seen].map((scheme) =>
    html("li", {}, html("span", { class: `swatch ${colors.of(scheme)}` }), scheme)));
}
