// The list of jobs: the worst first, with a sign, a word and a color for the problem.

import { NONE, count, duration, find, html, write } from "./markup.js";

/** What may be wrong with a job, the worst first. */
const TROUBLES = [
  { is: (job) => job.state === "failed", sign: "✖", word: "failed", look: "bad" },
  { is: (job) => job.stuck, sign: "▲", word: "stuck", look: "bad" },
  { is: (job) => job.miscalibrated, sign: "◆", word: "miscalibrated", look: "odd" },
  { is: (job) => job.state === "abandoned", sign: "◌", word: "abandoned", look: "quiet" },
  { is: (job) => job.state === "stopped", sign: "■", word: "stopped", look: "quiet" },
];
const ORDER = ["failed", "stuck", "miscalibrated", null, "abandoned", "stopped"];

const troubleOf = (job) => TROUBLES.find((each) => each.is(job)) ?? null;
const isRunning = (job) => job.state === "planning" && job.fastest >= 0;
const rankIn = (job) => 2 * ORDER.indexOf(troubleOf(job)?.word ?? null) + (job.state === "planned" ? 1 : 0);

/** The jobs in the order in which they need attention; equal ones by name. */
export const worstFirst = (jobs) =>
  [...jobs].sort((a, b) => rankIn(a) - rankIn(b) || (a.id < b.id ? -1 : 1));

/** The state of a job in words: the problem, and the activity. */
export function stateOf(job) {
  const running = isRunning(job) ? `running, ${count(job.ahead)} ${job.ahead === 1 ? "step" : "steps"} ahead` : job.state;
  const trouble = troubleOf(job);
  if (trouble === null) return running;
  return trouble.word === job.state ? trouble.word : `${trouble.word}, ${running}`;
}

/** The same with its sign and color. */
export function stateMark(job) {
  const trouble = troubleOf(job);
  if (trouble === null) return html("span", { class: "state" }, stateOf(job));
  const sign = html("span", { class: "sign", "aria-hidden": "true" }, trouble.sign);
  return html("span", { class: `state ${trouble.look}` }, sign, ` ${stateOf(job)}`);
}

/** Which ranks are behind, where some are and others are not. */
export function behind(job) {
  if (job.fastest <= job.slowest) return "";
  const named = job.slowest_ranks.join(", ");
  const more = job.count_slowest - job.slowest_ranks.length;
  const who = job.count_slowest === 1 ? `rank ${named}` : `ranks ${named}`;
  return more > 0 ? `${who} and ${count(more)} more` : who;
}

export const since = (job) =>
  job.since_acknowledged_s === null ? NONE : `${duration(job.since_acknowledged_s)} ago`;

const slowest = (job) => {
  if (job.slowest < 0) return job.fastest < 0 ? "none yet" : NONE;
  return job.last_step === null ? `${job.slowest}` : `${job.slowest} of ${job.last_step}`;
};

const rows = new Map(); // by id

function jobRow(job) {
  const link = html("a", { href: `#job=${encodeURIComponent(job.id)}` }, job.id);
  const cells = [0, 1, 2].map((at) => html("td", { class: at === 0 ? "text" : null }));
  return { link, cells, element: html("tr", {}, html("th", { scope: "row", class: "text name" }, link), ...cells) };
}

/** Show the jobs in the table, the `chosen` one marked. */
export function showJobs(jobs, chosen, more, filtered) {
  find("#no-jobs").hidden = jobs.length > 0 || filtered;
  find("#none-such").hidden = jobs.length > 0 || !filtered;
  find("#job-table").hidden = jobs.length === 0;
  find("#more-jobs").hidden = !more;
  const body = find("#job-table tbody");
  for (const [id, row] of rows) {
    if (!jobs.some((job) => job.id === id)) {
      row.element.remove();
      rows.delete(id);
    }
  }
  worstFirst(jobs).forEach((job, at) => {
    const row = rows.get(job.id) ?? jobRow(job);
    rows.set(job.id, row);
    if (body.children[at] !== row.element) body.insertBefore(row.element, body.children[at] ?? null);
    if (row.cells[0].textContent !== stateMark(job).textContent) row.cells[0].replaceChildren(stateMark(job));
    const late = behind(job);
    const label = `${slowest(job)} ${late}`;
    if (row.label !== label) {
      row.label = label;
      row.cells[1].replaceChildren(slowest(job), ...(late ? [html("small", {}, late)] : []));
    }
    write(row.cells[2], since(job));
    row.element.classList.toggle("chosen", job.id === chosen);
    if (job.id === chosen) row.link.setAttribute("aria-current", "true");
    else row.link.removeAttribute("aria-current");
  });
}
