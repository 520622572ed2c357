// Whether the profile holds: a table by scheme, and predicted against measured times.

import { NONE, count, find, html, ms, roughPercent, signedPercent, svg, ticks, write } from "./markup.js";

const SIZE = 210;
const LEFT = 44;
const BOTTOM = 34;
const KINDS = { begin: "begin", request: "request", refit: "refit", rollback: "roll-back" };
const ROW = 40; // of a bar with its words

function verdict(scheme) {
  if (scheme.warning) return "miscalibrated";
  if (scheme.error.recent === null) return "not measured";
  return scheme.error.recent > scheme.limit ? "too few samples" : "holds";
}

function row(scheme) {
  const { median, p90 } = scheme.error;
  return html("tr", {},
    html("th", { scope: "row", class: "text name" }, scheme.scheme),
    html("td", {}, count(scheme.pipelines)),
    html("td", {}, median === null ? NONE : `${roughPercent(median)}, ${roughPercent(p90)}`),
    html("td", {}, signedPercent(scheme.bias)),
    html("td", { class: "text" }, verdict(scheme),
      html("small", {}, `limit ${roughPercent(scheme.limit)}${scheme.limit_assumed ? " *" : ""}`)));
}

/** One bar for each scheme: the median error, a line up to the 90th percentile, and the limit. */
function drawErrors(place, schemes) {
  const measured = schemes.filter((scheme) => scheme.error.median !== null);
  const width = Math.max(place.clientWidth, 100);
  const end = Math.max(...measured.map(({ error, limit }) => Math.max(error.p90, limit)));
  const x = (value) => 1 + (value / end) * (width - 2);
  const words = ({ error, limit }) =>
    `${roughPercent(error.median)} (p90 ${roughPercent(error.p90)}, limit ${roughPercent(limit)})`;
  const spoken = measured.map((scheme) => `${scheme.scheme}: ${words(scheme)}`).join("; ");
  const drawing = svg("svg", { width, height: ROW * measured.length, role: "img", "aria-label": `Errors by scheme. ${spoken}` });
  measured.forEach((scheme, at) => {
    const { error, limit } = scheme;
    const y = at * ROW;
    drawing.append(
      svg("text", { x: 0, y: y + 12 }, scheme.scheme),
      svg("text", { class: "soft", x: width, y: y + 12, "text-anchor": "end" }, words(scheme)),
      svg("rect", { class: scheme.warning ? "error exceeds" : "error", x: 1, y: y + 17, width: x(error.median) - 1, height: 12 }),
      svg("line", { class: "end", x1: x(error.median), x2: x(error.p90), y1: y + 23, y2: y + 23 }),
      svg("line", { class: "bound", x1: x(limit), x2: x(limit), y1: y + 15, y2: y + 31 }));
  });
  place.replaceChildren(...(measured.length ? [drawing] : []));
}

function scatter(scheme) {
  const end = Math.max(...scheme.points.flat()) * 1.05;
  const span = SIZE - LEFT - 8;
  const x = (value) => LEFT + (value / end) * span;
  const y = (value) => SIZE - BOTTOM - (value / end) * (SIZE - BOTTOM - 8);
  const drawing = svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", class: scheme.warning ? "scatter drifted" : "scatter",
    "aria-label": `${scheme.scheme}: predicted and measured times of ${scheme.points.length} pipelines` });
  const [low, high] = [Math.max(0, 1 - scheme.limit), 1 + scheme.limit];
  const edge = [[0, 0], [end, end * low], [end, end], [end / high, end]];
  drawing.append(svg("polygon", { class: "band", points: edge.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
  for (const tick of ticks(end, 4)) {
    drawing.append(
      svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: y(0), y2: y(end) }),
      svg("line", { class: "grid", x1: x(0), x2: x(end), y1: y(tick), y2: y(tick) }),
      svg("text", { class: "soft", x: x(tick), y: y(0) + 14, "text-anchor": "middle" }, ms(tick)),
      svg("text", { class: "soft", x: LEFT - 5, y: y(tick) + 4, "text-anchor": "end" }, ms(tick)));
  }
  drawing.append(
    svg("line", { class: "axis", x1: x(0), y1: y(0), x2: x(end), y2: y(end) }),
    svg("text", { class: "soft", x: SIZE - 8, y: SIZE - 5, "text-anchor": "end" }, "predicted ms"),
    svg("text", { class: "soft", x: LEFT + 4, y: 16 }, "measured ms"),
    ...scheme.points.map(([predicted, measured]) => svg("circle", { class: "dot", cx: x(predicted), cy: y(measured), r: 3 })));
  return html("figure", {}, html("figcaption", {}, html("b", {}, scheme.scheme)), drawing);
}

/** Show which proposal plans which steps, for a job that was revised. */
export function drawRevisions(revisions) {
  const slow = (revision) => revision.slowdown.map(({ rank, factor }) => `${rank} (${factor ?? "lost"})`).join(", ");
  find("#revisions").hidden = revisions.length < 2;
  find("#revisions tbody").replaceChildren(...revisions.toReversed().map((revision) => html("tr", {},
    html("td", {}, count(revision.step)),
    ...[KINDS[revision.kind], revision.proposal, slow(revision) || NONE, revision.reason].map((words) =>
      html("td", { class: "text" }, words)))));
}

/** Copy the command that refits the profile, or mark it where a browser does not let pages copy. */
export async function copyRefit() {
  const command = find("#refit code");
  try {
    await navigator.clipboard.writeText(command.textContent);
    write(find("#copy-refit"), "Copied");
  } catch {
    getSelection().selectAllChildren(command);
    write(find("#copy-refit"), "Marked");
  }
}

/** The schemes by their error over its limit, the largest first; those without measurements last. */
export function sortSchemes(schemes) {
  const share = (scheme) => (scheme.error.recent ?? -1) / scheme.limit;
  return [...schemes].sort((a, b) => share(b) - share(a));
}

/** The decision in a sentence: whether the plans may go on by this profile. */
export function answer({ schemes, pipelines, steps }) {
  const measured = sortSchemes(schemes).filter((scheme) => scheme.error.recent !== null);
  const bad = measured.filter((scheme) => scheme.warning);
  if (!measured.length) {
    const why = steps.measured === 0 ? "No rank has measured a step yet." : pipelines.measurable === 0
      ? "Pipelines with several stages or that share their ranks cannot be measured alone."
      : "No pipeline was measured by all its ranks yet.";
    return `Does the profile hold: open. ${why}`;
  }
  const worst = bad[0] ?? measured[0];
  const error = `${worst.scheme} has an error of ${roughPercent(worst.error.recent)} (median; 90th percentile ` +
    `${roughPercent(worst.error.p90)}, limit ${roughPercent(worst.limit)})`;
  if (bad.length) return `Does the profile hold: no. ${bad.length} of ${measured.length} schemes exceed their limits: ${error}.`;
  if (worst.error.recent > worst.limit) return `Does the profile hold: open. Too few samples: ${error}.`;
  return `Does the profile hold: yes. The largest error of ${measured.length} schemes: ${error}.`;
}

/** Show the answer of /calibration in the section's elements. */
export function drawCalibration(calibration) {
  const { pipelines, steps } = calibration;
  const schemes = sortSchemes(calibration.schemes);
  write(find("#answer"), answer(calibration));
  const without = pipelines.all - pipelines.measurable;
  let note = "No rank has measured a step yet: there is no result.";
  if (steps.measured > 0) {
    note = `Profile ${calibration.profile}; ${count(steps.measured)} measured steps, ${steps.first} to ${steps.last}. ` +
      `${count(pipelines.measured)} of ${count(pipelines.all)} pipelines were measured` +
      (without > 0 ? `; ${count(without)} cannot be, as they have several stages or share their ranks` : "") + ". " +
      (schemes.some((each) => each.limit_assumed) ? "* assumed: the profile states no error." : "");
  }
  write(find("#calibration-note"), note);
  find("#refit").hidden = !calibration.warning;
  const server = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const command = find("#refit code");
  if (command.dataset.job !== calibration.job) write(find("#copy-refit"), "Copy");
  command.dataset.job = calibration.job;
  write(command, `seqplan profile refit --server ${server} --job ${calibration.job} -o refitted.json`);
  drawErrors(find("#errors .drawing"), schemes);
  find("#errors").hidden = steps.measured === 0;
  find("#calibration-table").hidden = schemes.length === 0;
  find("#calibration-table tbody").replaceChildren(...schemes.map(row));
  find("#scatters").replaceChildren(...schemes.filter((each) => each.points.length).map(scatter));
}
