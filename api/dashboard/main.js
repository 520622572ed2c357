// The page: the selected job and step, refreshed every two seconds.

import { Charts } from "./charts.js";
import { copyRefit, drawCalibration, drawRevisions } from "./calibration.js";
import { drawGantt } from "./gantt.js";
import { estimateRatio, intervalText } from "./intervals.js";
import { behind, showJobs, since, stateMark } from "./jobs.js";
import { NONE, count, duration, find, html, ms, percent, roughPercent, signedPercent, times, write } from "./markup.js";
import { RequestError, json, ofJob, text, token } from "./service.js";
import { Colors, drawStrategies } from "./strategies.js";

const EVERY_MS = 2000;
const PAGE = 50;
const UNSETTLED = 20; // steps requested again behind the slowest rank: late measurements
const WHOLE_MS = 60000; // from then on all steps are requested again: a trainer may have restarted
const KEPT = 30; // timelines
const TABLE = 50; // steps in the table

const seen = {
  pages: 1, // of the list of jobs
  job: null,
  about: null, // its row of /v1/progress
  from: null, // the step that the window began with at the last refresh
  wholeAt: 0, // the time when all of its steps were last requested (ms)
  steps: new Map(), // by number
  step: undefined, // the chosen one
  items: [], // those of the window, ascending
  chosen: -1, // index in items
  calibration: null,
  timelines: new Map(),
  colors: new Colors(),
};
let charts = null;
let waiting = null;
let asking = false;
let again = false; // the selection changed during a request

// The chosen job

const median = (values) => {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
};

function fact(name, value, more = "") {
  return html("div", {}, html("dt", {}, name), html("dd", {}, value, more && html("small", {}, more)));
}

/** The gap in words: a plan that reaches its bound is optimal. */
function gapOf(items) {
  const gap = median(items.map((item) => item.gap));
  if (gap === null) return [NONE, ""];
  if (gap < 0.00005) return ["optimal", "plans reach their lower bound (median)"];
  return [percent(gap), "at most so far from the optimum (median)"];
}

/** The last step that every rank has done; of a job that continues another, at least its steps. */
const lastDone = (about) => Math.max(about.slowest, about.first_step - 1);

/** What a step takes, measured if it was (ms). */
const took = (item) => item.measured_ms ?? item.predicted_ms;

function showFacts() {
  const { about, items, calibration } = seen;
  const last = about.last_step === null ? "more may come" : `of ${about.last_step}, the last`;
  const done = items.filter((item) => item.step <= about.slowest);
  const pace = done.length ? done : items;
  const step = median(pace.map(took));
  const rate = estimateRatio(pace.map((item) => [1000 * item.tokens, took(item)]));
  const executed = done.filter((item) => item.measured_ms !== null);
  const measured = executed.length ? "measured" : "predicted";
  const compared = executed.filter((item) => item.error !== null); // all ranks with work measured
  const slowdown = estimateRatio(compared.map((item) => [item.measured_ms, item.measured_ms / (1 + item.error)]));
  const left = about.last_step === null || step === null ? null : ((about.last_step - lastDone(about)) * step) / 1000;
  const errors = (calibration?.schemes ?? []).filter((each) => each.error.recent !== null);
  const worst = errors.sort((a, b) => b.error.recent / b.limit - a.error.recent / a.limit)[0];
  const late = behind(about);
  find("#facts").replaceChildren(
    fact("State", stateMark(about), `${count(about.world_size)} ranks`),
    fact("Last acknowledgement", since(about), about.predicted_ms === null ? "" : `a step is to take ${ms(about.predicted_ms)} ms`),
    fact("Slowest rank at", about.slowest < 0 ? NONE : about.slowest, late || `fastest ${about.fastest < 0 ? NONE : about.fastest}`),
    fact("Planned to step", about.last_planned_step ?? NONE, last),
    fact("Planned ahead", about.ahead, `look-ahead ${about.look_ahead}`),
    fact("Tokens per second", count(rate?.ratio), rate && `${measured}, forward and backward alone; ${intervalText(rate, count)}`),
    fact("Milliseconds a step", ms(step), `${measured}, median`),
    fact("Measured over predicted", times(slowdown?.ratio), slowdown ? intervalText(slowdown, (value) => value.toFixed(2)) : "no step measured on all ranks"),
    fact("Time left", left === null || left < 0 ? NONE : duration(left), `${measured}, without what comes between steps`),
    fact("Optimality gap", ...gapOf(items)),
    fact("Planning a step", `${ms(median(items.map((item) => item.planning_ms)))} ms`, "median"),
    fact("Calibration error", roughPercent(worst?.error.recent),
      worst ? `limit ${roughPercent(worst.limit)}; ${signedPercent(worst.bias)} on balance` : "nothing measured"),
  );
  const warnings = (calibration?.schemes ?? []).filter((each) => each.warning).map((each) => each.message);
  if (about.state === "failed") warnings.unshift(`Step ${about.failed_step} cannot be planned: ${about.error}`);
  const place = find("#warnings");
  if (place.dataset.warnings !== warnings.join("\n")) {
    place.dataset.warnings = warnings.join("\n");
    const lines = warnings.map((words) => html("p", {}, words));
    place.replaceChildren(...(warnings.length ? [html("div", { class: "warning" }, ...lines)] : []));
  }
}

function showSteps() {
  const some = seen.items.length > 0;
  find("#no-steps").hidden = some;
  find("#planned").hidden = !some;
  if (!some) return;
  charts ??= new Charts(find("#charts"), pick);
  charts.show(seen.items, seen.chosen);
  drawStrategies(find("#strategies"), seen.items, seen.chosen, seen.colors, pick);
  const slider = find("#step");
  slider.max = `${seen.items.length - 1}`;
  slider.value = `${seen.chosen}`;
  const item = seen.items[seen.chosen];
  const { world_size } = seen.about;
  slider.setAttribute("aria-valuetext", `step ${item.step}`);
  write(find("#step-name"), `step ${item.step}`);
  find("#before").disabled = seen.chosen === 0;
  find("#after").disabled = seen.chosen === seen.items.length - 1;
  write(find("#step-facts"),
    `Step ${item.step}: ${count(item.tokens)} tokens in ${count(item.sequences)} sequences as ${item.strategy}. ` +
    `Predicted ${ms(item.predicted_ms)} ms, measured ${item.measured_ms === null ? "not yet" : `${ms(item.measured_ms)} ms`}, ` +
    `optimality gap ${percent(item.gap)}, planned in ${ms(item.planning_ms)} ms; ` +
    `${count(item.ranks_acknowledged)} of ${count(world_size)} ranks are done.`);
  if (find("#steps").open) showTable();
}

function showTable() {
  const cells = (item) => [
    `${item.step}`, ms(item.predicted_ms), ms(item.measured_ms), percent(item.gap), ms(item.planning_ms),
    count(item.ranks_acknowledged),
  ];
  find("#steps tbody").replaceChildren(...seen.items.slice(-TABLE).reverse().map((item) =>
    html("tr", {}, ...cells(item).map((words) => html("td", {}, words)),
      html("td", { class: "text" }, item.strategy))));
}

async function showOneStep() {
  const item = seen.items[seen.chosen];
  if (!item) return;
  const { job } = seen;
  const stale = () => seen.job !== job || seen.items[seen.chosen]?.step !== item.step;
  if (!seen.timelines.has(item.step)) {
    const found = await json(ofJob(job, "plans", item.step, "timeline"));
    if (seen.job !== job) return;
    seen.timelines.set(item.step, found);
    if (seen.timelines.size > KEPT) seen.timelines.delete(seen.timelines.keys().next().value);
  }
  if (stale()) return;
  write(find("#gantt-note"), drawGantt(find("#gantt"), seen.timelines.get(item.step)));
  const why = find("#why");
  if (why.open && why.dataset.step !== `${job} ${item.step}`) {
    const explanation = await text(ofJob(job, "plans", item.step, "explain"));
    if (stale()) return;
    why.dataset.step = `${job} ${item.step}`;
    write(find("pre", why), explanation);
  }
}

function choose() {
  const { items } = seen;
  if (find("#follow").checked) {
    const next = items.findIndex((item) => item.step > seen.about.slowest);
    return next < 0 ? items.length - 1 : next;
  }
  const at = items.findIndex((item) => item.step >= seen.step);
  return at < 0 ? items.length - 1 : at;
}

/** Look at the step at an index of the window, and stay there. */
function pick(at) {
  if (!seen.items[at]) return;
  find("#follow").checked = false;
  select(at);
}

function select(at) {
  const moved = seen.items[at]?.step !== seen.step;
  seen.chosen = at;
  seen.step = seen.items[at]?.step;
  showSteps();
  if (moved || !find("#gantt").firstChild) showOneStep().catch(failed);
}

// Asking

async function askSteps(job, about) {
  const [done, window, now] = [lastDone(about), Number(find("#window").value), Date.now()];
  const first = Math.max(done - window + 1, 0);
  const last = done + window;
  const known = seen.about === null ? done : lastDone(seen.about); // at the last refresh
  // The first time, a wider window, another job of the same name, or a minute later.
  const whole = seen.from === null || first < seen.from || done < known || now - seen.wholeAt > WHOLE_MS;
  let after = (whole ? first : Math.max(first, known - UNSETTLED)) - 1;
  const found = [];
  while (after !== null && after < last) {
    const page = await json(`${ofJob(job, "steps")}?after=${after}&limit=${Math.min(last - after, 1000)}`);
    found.push(...page.items);
    after = page.next;
  }
  return () => {
    seen.from = first;
    if (whole) {
      seen.wholeAt = now;
      seen.steps.clear();
    }
    for (const item of found) seen.steps.set(item.step, item);
    for (const step of seen.steps.keys()) if (step < first || step > last) seen.steps.delete(step);
    seen.items = [...seen.steps.values()].sort((a, b) => a.step - b.step);
  };
}

async function refresh() {
  const only = find("#only").value;
  // Those that may need attention first: they are on the first page, whatever their names.
  const groups = only === "" ? ["failed", "planning", "planned,abandoned,stopped"] : [only];
  const jobs = [];
  let [cursor, more] = [null, false];
  for (const states of groups) {
    cursor = "";
    for (let page = 0; page < seen.pages && cursor !== null; page += 1) {
      const found = await json(`v1/progress?limit=${PAGE}&state=${states}&cursor=${encodeURIComponent(cursor)}`);
      jobs.push(...found.items);
      cursor = found.next;
    }
    more ||= cursor !== null;
  }
  find("#token-form").hidden = true;
  find("#forget").hidden = token.get() === null;
  find("#main").hidden = false;
  if (seen.job === null && jobs.length === 1 && only === "") seen.job = jobs[0].id;
  showJobs(jobs, seen.job, more, only !== "");
  const { job } = seen;
  find("#job").hidden = job === null;
  if (job === null) return;
  write(find("#job-title"), `Job ${job}`);
  try {
    const about = await json(ofJob(job, "progress"));
    const [keep, calibration, revisions] = await Promise.all([
      askSteps(job, about),
      json(`${ofJob(job, "calibration")}?points=200`),
      json(ofJob(job, "revisions")),
    ]);
    if (seen.job !== job) return;
    drawRevisions(revisions.items);
    [seen.about, seen.calibration] = [about, calibration];
    keep();
  } catch (error) {
    if (!(error instanceof RequestError && error.status === 404)) throw error;
    find("#facts").replaceChildren();
    find("#answer").replaceChildren();
    find("#planned").hidden = true;
    write(find("#warnings"), error.message);
    delete find("#warnings").dataset.warnings;
    return;
  }
  showFacts();
  drawCalibration(seen.calibration);
  find("#planned").hidden = seen.items.length === 0; // figures take the room that they are shown in
  if (seen.items.length) select(choose());
  else showSteps();
}

function failed(error) {
  if (error instanceof RequestError && error.status === 401) {
    const first = token.get() === null;
    token.forget();
    find("#main").hidden = true;
    find("#forget").hidden = true;
    find("#token-form").hidden = false;
    write(find("#token-why"), first
      ? "This service wants a token. One that may read is enough."
      : "The service does not know this token. One that may read is enough.");
    write(find("#link"), "Waiting for a token");
    find("#token").focus();
    return;
  }
  const at = new Date().toLocaleTimeString("en", { hour12: false });
  if (!find("#link").textContent.startsWith("No answer")) {
    const why = error instanceof RequestError ? error.message : "the service cannot be reached";
    write(find("#link"), `No answer since ${at}: ${why}. Trying again.`);
  }
}

async function tick() {
  clearTimeout(waiting);
  if (asking) again = true;
  if (asking || document.hidden || !find("#token-form").hidden) return;
  [asking, again] = [true, false];
  try {
    await refresh();
    write(find("#link"), "Live, every 2 s");
  } catch (error) {
    failed(error);
  } finally {
    asking = false;
  }
  waiting = setTimeout(tick, again ? 0 : EVERY_MS);
}

function open() {
  const chosen = new URLSearchParams(location.hash.slice(1)).get("job");
  if (chosen === null || chosen === seen.job) return;
  Object.assign(seen, { job: chosen, about: null, from: null, items: [], chosen: -1, step: undefined, calibration: null });
  seen.steps.clear();
  seen.timelines.clear();
  seen.colors = new Colors();
  find("#follow").checked = true;
  find("#gantt").replaceChildren();
  delete find("#warnings").dataset.warnings;
  find("#warnings").replaceChildren();
  find("#answer").replaceChildren();
  find("#job").hidden = true;
  tick();
}

find("#token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(find("#token").value.trim());
  find("#token").value = "";
  find("#token-form").hidden = true;
  tick();
});
find("#forget").addEventListener("click", () => {
  token.forget();
  location.reload();
});
find("#more-jobs").addEventListener("click", () => {
  seen.pages += 1;
  tick();
});
find("#only").addEventListener("change", () => {
  seen.pages = 1;
  tick();
});
find("#copy-refit").addEventListener("click", copyRefit);
find("#window").addEventListener("change", tick);
find("#step").addEventListener("input", (event) => pick(Number(event.target.value)));
find("#before").addEventListener("click", () => pick(seen.chosen - 1));
find("#after").addEventListener("click", () => pick(seen.chosen + 1));
find("#follow").addEventListener("change", () => {
  if (find("#follow").checked && seen.items.length) select(choose());
});
find("#why").addEventListener("toggle", () => showOneStep().catch(failed));
find("#steps").addEventListener("toggle", showTable);
addEventListener("hashchange", open);
addEventListener("resize", () => {
  if (!seen.items.length) return;
  showSteps();
  showOneStep().catch(failed);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) write(find("#link"), "Paused while the tab is hidden");
  else tick();
});
open();
tick();
