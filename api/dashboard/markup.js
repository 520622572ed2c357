// Elements and numbers. Text of the service becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const share = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const rough = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const signed = new Intl.NumberFormat("en", { maximumFractionDigits: 1, signDisplay: "exceptZero" });

export const NONE = "–";
const or = (write) => (value) => (value === null || value === undefined ? NONE : write(value));

export const count = or((value) => number.format(value));
export const ms = or((value) => (Math.abs(value) >= 1000 ? number : fine).format(value));
export const percent = or((value) => `${share.format(100 * value)} %`);
export const roughPercent = or((value) => `${rough.format(100 * value)} %`);
export const times = or((value) => `${value.toFixed(2)}×`);
export const signedPercent = or((value) => `${signed.format(100 * value)} %`);

/** Seconds as "12 s", "5 min", "3 h 20 min", "2 d 4 h". */
export const duration = or((seconds) => {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  const min = Math.round(s / 60);
  if (min < 120) return `${min} min`;
  const h = Math.floor(min / 60);
  return h < 48 ? `${h} h ${min % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
});

export const find = (selector, within = document) => within.querySelector(selector);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An HTML element; strings among the children become text. */
export const html = (name, attributes = {}, ...children) =>
  filled(document.createElement(name), attributes, children);

/** An SVG element. */
export const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

/** Text of an element, unchanged if it is the same, so that screen readers do not repeat it. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Ranks as "0–3, 8". */
export function spans(ranks) {
  const found = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else found.push([rank, rank]);
  }
  return found.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ");
}

/** The least of 1, 2, 5, 10, 20, … that is no less than a number. */
export function round(least) {
  const power = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  return [1, 2, 5, 10].find((factor) => factor * power >= least) * power;
}

/** Round steps of an axis from 0 to at least `end`: [0, step, 2·step, …]. */
export function ticks(end, about) {
  const raw = end / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, k) => k * step);
}
