// Looks of states: a tone, an icon and a rank. The names of the states are the API's.

import { NONE } from "./format.js";

/**
 * @typedef {"good" | "doubtful" | "bad" | "info" | "idle"} Tone
 * @typedef {{ tone: Tone, icon: string, rank: number }} Look
 */

/** Looks of cluster states; a worse state has a higher rank. @type {Record<string, Look>} */
const CLUSTERS = {
  live: { tone: "good", icon: "ok", rank: 0 },
  syncing: { tone: "info", icon: "sync", rank: 1 },
  paused: { tone: "idle", icon: "pause", rank: 2 },
  draining: { tone: "idle", icon: "down", rank: 2 },
  restored: { tone: "info", icon: "disk", rank: 3 },
  conflict: { tone: "doubtful", icon: "two", rank: 4 },
  stale: { tone: "doubtful", icon: "clock", rank: 5 },
  quarantined: { tone: "doubtful", icon: "shield", rank: 6 },
  timeout: { tone: "bad", icon: "clock", rank: 7 },
  misbehaving: { tone: "bad", icon: "warn", rank: 7 },
  rejected: { tone: "bad", icon: "bad", rank: 7 },
  identityChanged: { tone: "bad", icon: "two", rank: 8 },
  tlsFailed: { tone: "bad", icon: "lock", rank: 8 },
  authFailed: { tone: "bad", icon: "lock", rank: 8 },
};

/** @param {any} cluster @returns {Look} */
export function clusterLook(cluster) {
  return CLUSTERS[cluster.state] ?? { tone: "bad", icon: "warn", rank: 9 };
}

/** Whether a cluster is well, by the rule of `strait cluster get` for its exit code. @param {any} cluster */
export const isWell = ({ state, reason }) => {
  if (state === "syncing") return !/^STR\d/.test(reason ?? "");
  return state === "draining" ? !/STR0243/.test(reason ?? "") : ["live", "paused"].includes(state);
};

/** Codes of endpoints that are withheld on purpose from other networks; `strait check` reports them as notes, not problems. */
const MEANT = ["STR0404", "STR0407", "STR0413", "STR0602"];

/** Whether a code of withheld endpoints is a problem. @param {string} code */
export const isTrouble = (code) => !MEANT.includes(code);

/** Number of endpoints withheld because of a problem. @param {any} cluster @returns {number} */
export function keptBack(cluster) {
  const by = Object.entries(cluster.withheldBy ?? {}).filter(([code]) => isTrouble(code));
  return by.reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Whether a cluster needs attention. @param {any} cluster */
export const needsLook = (cluster) => !isWell(cluster) || cluster.credential?.endsSoon === true || keptBack(cluster) > 0;

/**
 * Returns what a proxy did with the last response of a type, in the CLI's words.
 * @param {any} entry
 * @returns {string}
 */
export function typeState(entry) {
  if (entry?.nack) return "NACK";
  if (entry?.sent === null || entry?.sent === undefined) return NONE;
  return entry.sent === entry.acked ? "ok" : "waits";
}

/**
 * Whether a stream belongs to an agent, which only requests the table of names. The proxy next to it has its own stream.
 * @param {any} proxy
 */
export function isOfAgent(proxy) {
  const types = Object.keys(proxy.types ?? {});
  return types.length > 0 && types.every((type) => type === "nds");
}

/** Returns the worst state of a proxy's types. @param {any} proxy @returns {"ok" | "NACK" | "waits"} */
export function proxyState(proxy) {
  const all = Object.values(proxy.types ?? {}).map(typeState);
  if (all.includes("NACK")) return "NACK";
  return all.includes("waits") ? "waits" : "ok";
}

/** @type {Record<string, Look & { word: string }>} */
export const PROXIES = {
  ok: { tone: "good", icon: "ok", rank: 0, word: "in sync" },
  waits: { tone: "doubtful", icon: "clock", rank: 1, word: "waiting" },
  NACK: { tone: "bad", icon: "bad", rank: 2, word: "rejecting" },
};

/**
 * Returns how the network can be entered from other networks.
 * @param {any} network
 * @param {boolean} isUsed whether the network has anything to reach
 * @returns {Look & { word: string }}
 */
export function entryLook(network, isUsed) {
  const gateways = network.gateways ?? [];
  const dead = gateways.filter((/** @type {any} */ one) => one.dead === true).length;
  if (gateways.length === 0 && !isUsed) return { tone: "idle", icon: "anchor", rank: 0, word: "nothing to reach" };
  if (gateways.length === 0 && (network.pending ?? []).some((/** @type {any} */ one) => one.code === "STR0432")) {
    return { tone: "bad", icon: "bad", rank: 6, word: "gateway has no ready pod" };
  }
  if (gateways.length === 0 && (network.pending ?? []).some((/** @type {any} */ one) => one.code === "STR0405")) {
    return { tone: "bad", icon: "bad", rank: 6, word: "gateway's name does not resolve" };
  }
  if (gateways.length === 0 && (network.pending ?? []).length > 0) {
    return { tone: "bad", icon: "clock", rank: 6, word: "gateway has no address yet" };
  }
  if (gateways.length === 0) return { tone: "bad", icon: "bad", rank: 6, word: "no gateway" };
  if (dead === gateways.length) return { tone: "bad", icon: "bad", rank: 6, word: "no gateway answers" };
  if (dead > 0) return { tone: "doubtful", icon: "warn", rank: 4, word: `${dead} of ${gateways.length} gateways dead` };
  return { tone: "good", icon: "anchor", rank: 0, word: "in use" };
}
