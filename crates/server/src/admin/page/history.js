// States of clusters as far as this page has seen them. States from before the page was opened are not known, except for
// the start of the state that lasts, which the control plane reports.

import { h, svg } from "./dom.js";
import { age, now } from "./format.js";
import { clusterLook } from "./states.js";

const HOUR = 3_600_000;
/** Milliseconds between two answers from which the time between them counts as unknown. */
const GAP = 90_000;

/** @typedef {{ from: number, to: number, state: string }} Stretch */

/** Stretches by cluster and Secret, oldest first. @type {Map<string, Stretch[]>} */
const seen = new Map();
let noted = 0;

/** @param {any} cluster */
const key = (cluster) => `${cluster.id} ${cluster.secret}`;

/**
 * Records an answer.
 * @param {any[]} clusters
 * @param {number} at time of the answer, by this machine's clock
 */
export function note(clusters, at) {
  if (at === noted) return;
  noted = at;
  const time = now() - (Date.now() - at);
  const there = new Set(clusters.map(key));
  for (const name of seen.keys()) if (!there.has(name)) seen.delete(name);
  for (const one of clusters) {
    const all = seen.get(key(one)) ?? [];
    const before = all.at(-1);
    const known = before !== undefined && time - before.to < GAP;
    if (known && before.state === one.state) {
      before.to = time;
    } else {
      const since = typeof one.since === "string" ? Date.parse(one.since) : time;
      const from = Math.max(Math.min(since, time), before?.to ?? 0);
      if (known && before.to < from) before.to = from;
      all.push({ from, to: time, state: one.state });
    }
    seen.set(key(one), all.filter((stretch) => time - stretch.to < HOUR));
  }
}

/** Draws the last hour as a strip that ends now, at the right. Unknown times stay empty. @param {any} cluster */
function strip(cluster) {
  const end = now();
  const x = (/** @type {number} */ at) => Math.max(0, 120 - ((end - at) / HOUR) * 120);
  return svg("svg", { class: "strip", viewBox: "0 0 120 12", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "unknown", x: 0.5, y: 0.5, width: 119, height: 11, rx: 3 }),
    (seen.get(key(cluster)) ?? []).map((stretch) => svg("rect", {
      class: clusterLook(stretch).tone, x: x(stretch.from).toFixed(1), y: 1,
      width: Math.max(1.5, x(stretch.to) - x(stretch.from)).toFixed(1), height: 10,
    })));
}

/** Draws the last hour, and says since when the state lasts: a short time is hardly visible. @param {any} cluster */
export const lastHour = (cluster) => [
  strip(cluster),
  h("span", { class: "fine" }, typeof cluster.since === "string" ? `${cluster.state} for ${age(cluster.since)}` : cluster.state),
];
