// Figures over the steps of a job, with intervals, in the words of the report.

const LEAST = 16; // steps that an interval needs, as in the report
const NORMAL = 1.96; // 95 % of a normal distribution

/**
 * The ratio of the sums of two values of each step, and its 95 % interval over other steps of the
 * same job: null without steps, an interval of null for fewer than LEAST.
 */
export function estimateRatio(pairs) {
  const n = pairs.length;
  const [above, below] = [0, 1].map((at) => pairs.reduce((sum, pair) => sum + pair[at], 0));
  if (!n || !below) return null;
  const ratio = above / below;
  if (n < LEAST) return { ratio, interval: null, steps: n };
  const squares = pairs.reduce((sum, [a, b]) => sum + (a - ratio * b) ** 2, 0);
  const half = (NORMAL * Math.sqrt((squares * n) / (n - 1))) / below;
  return { ratio, interval: [ratio - half, ratio + half], steps: n };
}

/** The interval in words, or why there is none. */
export function intervalText({ interval, steps }, show) {
  const over = steps === 1 ? "1 step" : `${steps} steps`;
  if (interval === null) return `no interval: ${over}; ${LEAST} or more give one`;
  return `95 % interval ${show(interval[0])} to ${show(interval[1])} over ${over}`;
}
