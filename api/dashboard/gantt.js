// One step in time: a row for each stage of each pipeline, its passes by the 1F1B simulation.

import { count, ms, spans, svg, ticks } from "./markup.js";

const ROWS = 64; // more cannot be read; those that end last are shown
const NAMED = 4000; // passes with a separate name, more are too many for a browser to keep
const ROW = 20;
const PASS = { F: "forward", B: "backward" };

/** Rows to draw: whole pipelines, those that end last first until there are enough, in order. */
function chosen(pipelines) {
  const byEnd = pipelines.map((_, at) => at).sort((a, b) => pipelines[b].end_ms - pipelines[a].end_ms);
  const kept = new Set();
  let rows = 0;
  for (const at of byEnd) {
    if (rows > 0 && rows + pipelines[at].stages.length > ROWS) break;
    rows += pipelines[at].stages.length;
    kept.add(at);
  }
  return pipelines.map((pipeline, at) => ({ ...pipeline, at })).filter(({ at }) => kept.has(at));
}

function recomputation({ recompute, offload_layers: share }) {
  if (!recompute) return "";
  return `, recomputation ${recompute}` + (share ? `, ${Math.round(100 * share)} % of layers offloaded` : "");
}

function passes(pipeline, stage, x, top, names) {
  const group = svg("g", { class: "passes" });
  for (const [kind, at, start, end] of pipeline.stages[stage]) {
    const width = Math.max(x(end) - x(start), 0.3);
    const rect = svg("rect", { class: PASS[kind], x: x(start), y: top + 2, width, height: ROW - 4 });
    if (names) {
      const micro = pipeline.micro_batches[at];
      rect.append(svg("title", {}, `${PASS[kind]} of micro-batch ${at}: ${ms(start)} to ${ms(end)} ms, ` +
        `${count(micro.tokens)} tokens in ${count(micro.sequences)} sequences, ` +
        `the longest ${count(micro.longest)}${recomputation(micro)}`));
    }
    group.append(rect);
    if (width > 16) {
      group.append(svg("text", { class: `on-${PASS[kind]}`, x: x(start) + width / 2, y: top + ROW / 2 + 3.5 },
        `${at}`));
    }
  }
  return group;
}

/** Draw `timeline` into `place`; a note on omissions, or "". */
export function drawGantt(place, timeline) {
  const pipelines = chosen(timeline.pipelines);
  const width = Math.max(place.clientWidth, 260);
  const left = Math.min(150, width * 0.3);
  const right = 12;
  const end = Math.max(timeline.predicted_ms, timeline.simulated_ms, 1e-9);
  const x = (at) => left + (at / end) * (width - left - right);
  const rows = pipelines.reduce((all, { stages }) => all + stages.length, 0);
  const height = rows * ROW + 24;
  const total = pipelines.reduce((all, { stages }) => all + stages.reduce((n, s) => n + s.length, 0), 0);
  const drawing = svg("svg", { width, height, role: "img",
    "aria-label": `Step ${timeline.step}: ${count(timeline.pipelines.length)} pipelines, ` +
      `simulated to end at ${ms(timeline.simulated_ms)} ms` });
  for (const tick of ticks(end, width > 600 ? 8 : 4)) {
    drawing.append(
      svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: rows * ROW }),
      svg("text", { class: "soft", x: x(tick), y: height - 8, "text-anchor": "middle" }, ms(tick)),
    );
  }
  let top = 0;
  const room = Math.floor(left / 6.4);
  for (const pipeline of pipelines) {
    pipeline.stages.forEach((_, stage) => {
      const wide = pipeline.ranks.length / pipeline.stages.length;
      const ranks = spans(pipeline.ranks.slice(stage * wide, (stage + 1) * wide));
      const label = `${pipeline.scheme} · ${ranks}`;
      drawing.append(
        svg("text", { x: 0, y: top + ROW / 2 + 4 }, svg("title", {},
          `pipeline ${pipeline.at}: ${pipeline.scheme}, stage ${stage} on ranks ${ranks}`),
        label.length > room ? `${label.slice(0, room - 1)}…` : label),
        svg("rect", { class: "track", x: left, y: top + 2, width: width - left - right, height: ROW - 4 }),
        passes(pipeline, stage, x, top, total <= NAMED),
      );
      top += ROW;
    });
  }
  for (const [name, at] of [["end", timeline.predicted_ms], ["bound", timeline.lower_bound_ms]]) {
    drawing.append(svg("line", { class: name, x1: x(at), x2: x(at), y1: 0, y2: rows * ROW }));
  }
  place.replaceChildren(drawing);
  const left_out = timeline.pipelines.length - pipelines.length;
  const idle = timeline.idle_ranks.length ? `Idle: ranks ${spans(timeline.idle_ranks)}. ` : "";
  const fewer = left_out ? `Of ${count(timeline.pipelines.length)} pipelines the ${count(pipelines.length)} ` +
    "that end last are shown. " : "";
  return `${idle}${fewer}Milliseconds from the start of the step; rows are stages, with their ranks.`;
}
