// Traffic that Prometheus has measured, if the control plane has the address of one: rates, errors and latency.

import * as api from "./api.js";
import { NONE } from "./format.js";

/** @typedef {{ rate: number, errors: number, p95: number | null }} Traffic */

const PATH = "/debug/traffic";

/** Returns the measured traffic, or null if there is none. */
export function measured() {
  const value = api.get(PATH)?.value;
  if (!value?.enabled) return null;
    // Its changes cause no event.
  api.expect();
  return value;
}

/**
 * Adds up traffic. The latency is the highest, because percentiles cannot be added.
 * @param {any[]} rows
 * @returns {Traffic | null}
 */
function sum(rows) {
  if (rows.length === 0) return null;
  const p95 = rows.map((row) => row.p95).filter((value) => typeof value === "number");
  return {
    rate: rows.reduce((all, row) => all + row.rate, 0),
    errors: rows.reduce((all, row) => all + row.errors, 0),
    p95: p95.length ? Math.max(...p95) : null,
  };
}

/**
 * Returns the traffic from clusters to clusters.
 * @param {any} value @param {string[]} from @param {string[]} to
 */
export const between = (value, from, to) =>
  sum((value?.clusters ?? []).filter((/** @type {any} */ row) => from.includes(row.source) && to.includes(row.destination)));

/** Returns the traffic of a service. @param {any} value @param {string} host */
export const ofService = (value, host) => sum((value?.services ?? []).filter((/** @type {any} */ row) => row.hostname === host));

/** @param {number} value */
const short = (value) => (value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(2));

/** @param {Traffic | null} one */
export const rate = (one) => (one ? `${short(one.rate)}/s` : NONE);

/** @param {Traffic | null} one */
export const errors = (one) => (one && one.rate > 0 ? `${short((one.errors / one.rate) * 100)} %` : NONE);

/** @param {Traffic | null} one */
export const latency = (one) => (one?.p95 ? `${short(one.p95)} ms` : NONE);

/** Describes traffic in a few words. @param {Traffic} one */
export const words = (one) => `${rate(one)}, ${errors(one)} errors, ${latency(one)}`;
