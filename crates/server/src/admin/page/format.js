// Formats values in the same words as the CLI, except for empty ones.

/** What is shown for an empty value. */
export const NONE = "\u2013";

/** @param {number} total seconds */
export function span(total) {
  const units = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]);
  const seconds = Math.max(0, Math.floor(total));
  const first = units.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0s";
  const [size, unit] = units[first];
  const count = Math.floor(seconds / size);
  const next = units[first + 1];
  const more = next ? Math.floor((seconds % size) / next[0]) : 0;
  return next && more > 0 && count < 10 ? `${count}${unit}${more}${next[1]}` : `${count}${unit}`;
}

/** Milliseconds by which this machine's clock is ahead of the server's. */
let skew = 0;

/** @param {string | null} date the Date header of an answer, in whole seconds */
export function setServerTime(date) {
  const at = date === null ? NaN : Date.parse(date);
    // The header has whole seconds, so a smaller difference can't be measured.
  if (Number.isFinite(at)) skew = Math.abs(Date.now() - at) < 2000 ? 0 : Date.now() - at;
}

/** Time of the bundle, if the page shows one: clocks then stand still at that time. @type {number | null} */
let standing = null;

/** @param {string} taken RFC 3339 */
export function setStoredTime(taken) {
  standing = Date.parse(taken);
}

/** Returns the server's time, in milliseconds. */
export const now = () => standing ?? Date.now() - skew;

/**
 * @param {unknown} time RFC 3339, or null
 * @param {number} [asOf] time to count up to, by this machine's clock; the default is now
 */
export function age(time, asOf) {
  const at = typeof time === "string" ? Date.parse(time) : NaN;
  const then = asOf === undefined || standing !== null ? now() : asOf - skew;
  return Number.isNaN(at) ? NONE : span((then - at) / 1000);
}

/** @param {unknown} time RFC 3339, or null */
export function until(time) {
  const at = typeof time === "string" ? Date.parse(time) : NaN;
  return Number.isNaN(at) ? NONE : span((at - now()) / 1000);
}

/** @param {unknown} value */
export function number(value) {
  return typeof value === "number" ? String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f") : "0";
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Returns a dash for an empty value. @param {unknown} value @returns {string} */
export function text(value) {
  if (Array.isArray(value)) return value.length ? value.map(text).join(",") : NONE;
  return value === null || value === undefined || value === "" ? NONE : String(value);
}

/** @param {any} gateway */
export function socket(gateway) {
  const address = text(gateway.address);
  return address.includes(":") ? `[${address}]:${gateway.port}` : `${address}:${gateway.port}`;
}

/** Returns `name.namespace` of a proxy. @param {any} proxy */
export const proxyName = (proxy) => String(proxy.id ?? "").split("~")[2] ?? String(proxy.id);

/** Returns `name.namespace@cluster`, the form that every command accepts. @param {any} proxy */
export const proxyPlace = (proxy) => `${proxyName(proxy)}@${proxy.cluster}`;

/** Quotes a word for a shell's command line. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./~-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Returns the first error code in a text, or null. @param {unknown} of */
export const codeOf = (of) => (typeof of === "string" ? /\bSTR\d{4}\b/.exec(of)?.[0] ?? null : null);
