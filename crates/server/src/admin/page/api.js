// Client of the admin API: keeps the answers that the page shows, and decides when to request them again.
//
// The server's event stream reports that something has changed; the page then requests everything it shows. Without an
// event it rarely sends requests. The server does not send an answer again that has not changed (`ETag`).

import { setServerTime, setStoredTime } from "./format.js";

/**
 * @template [T=any] the response
 * @typedef {{ value: T, at: number, error: string | null, status: number, took: number, pending: boolean, tag: string | null, missing?: string | null }} Answer
 */

/** Milliseconds between refreshes without an event stream, or while the page shows something that changes without an event. */
const PAUSE = 10_000;
/**
 * Milliseconds between refreshes while the event stream is open. Also the longest pause after slow answers: one slow
 * answer does not mean that the next one is slow.
 */
const QUIET = 60_000;
/**
 * Milliseconds from a change event to a further refresh. Proxies acknowledge the change meanwhile, which causes no event.
 * The server sends at most one change event every two seconds.
 */
const SETTLES = 2_500;
/** Minimum milliseconds between refreshes caused by events, so that a hundred pages put little load on the server. */
const LEAST = 2_000;
/** Milliseconds without an event after which the stream counts as broken. The server sends a sign of life every 20 seconds. */
const SILENT = 45_000;
const ANSWER_LIMIT = 30_000;
const REFUSED_FOR = 30_000;

/** @type {Map<string, Answer>} */
const answers = new Map();
/** @type {Set<string>} */
let wanted = new Set();
/** @type {() => void} */
let changed = () => {};
/** @type {EventSource | null} */
let events = null;
let eventsOpen = false;
/** Time of the last event. */
let lastEvent = 0;
let signedOut = false;
/** Time at which the answers were stored, if they come from a bundle. @type {string | null} */
let stored = null;
/** Time before which the page does not open the event stream again, after the server has refused it. */
let followAfter = 0;
/** @type {number | undefined} */
let timer;
/** Timer of the refresh after an event. @type {number | undefined} */
let eventTimer;
/** Timer of the refresh after a change has settled. @type {number | undefined} */
let settling;
/** Time of the last refresh. */
let lastRefresh = 0;
/** Whether the page shows something that is about to change without an event. */
let awaited = false;
/** Whether other replicas contribute to the answers. The event stream reports only the proxies of one. */
let several = false;

/** @param {() => void} listener called after each answer */
export function start(listener) {
  changed = listener;
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("online", refresh);
  follow();
}

/**
 * Returns the last answer to `path`, or `undefined` before the first one. The current drawing then needs the path.
 * @template {string} P
 * @param {P} path
 * @returns {Answer<import("./admin-api.js").ResponseTo<P>> | undefined}
 */
export function get(path) {
  wanted.add(path);
  return answers.get(path);
}

/** Tells the client that a view shows something that will change soon without an event, e.g. an outstanding acknowledgement. */
export function expect() {
  awaited = true;
}

/** Begins a drawing. `end` deletes the answers to paths that the drawing does not `get`. */
export function begin() {
  wanted = new Set();
  awaited = false;
}

/** Ends a drawing: deletes answers that are not needed any more, and requests missing answers. */
export function end() {
  for (const path of answers.keys()) if (!wanted.has(path)) answers.delete(path);
  for (const path of wanted) if (!answers.has(path)) void request(path);
}

/** Returns how fresh the shown answers are. */
export function freshness() {
  const shown = [...wanted].map((path) => answers.get(path)).filter((one) => one !== undefined);
  const known = shown.filter((one) => one.at > 0);
  const oldest = known.length ? Math.min(...known.map((one) => one.at)) : 0;
  const failure = shown.find((one) => one.error !== null && one.status === 0);
  const missing = [...new Set(shown.flatMap((one) => (one.missing ?? "").split(",")).filter((name) => name !== ""))];
    // While the stream is open and reports no change, earlier answers are still current.
  const live = eventsOpen && Date.now() - lastEvent < SILENT;
  return { signedOut, oldest, current: Math.max(oldest, live ? Math.min(lastEvent, oldest + QUIET) : 0), failing: failure !== undefined, live, stored, missing };
}

/** Requests everything that the page shows. */
export function refresh() {
  clearTimeout(eventTimer);
  lastRefresh = Date.now();
  plan(PAUSE);
  if (document.visibilityState === "hidden") return;
    // Answers from a bundle don't change.
  for (const path of wanted) if (stored === null || !answers.has(path) || answers.get(path)?.error) void request(path);
}

/** @param {number} pause */
function plan(pause) {
  clearTimeout(timer);
  timer = setTimeout(turn, signedOut ? 5_000 : pause);
}

/** Refreshes if it is time to, without an event; if not, checks again later. Replaces an event stream that has gone silent. */
function turn() {
  if (eventsOpen && Date.now() - lastEvent > SILENT) {
    events?.close();
    events = null;
    eventsOpen = false;
    follow();
    return;
  }
    // Requests that take the server long are repeated less often.
  const slowest = Math.max(0, ...[...answers.values()].map((one) => one.took));
  const pause = Math.max(signedOut ? 5_000 : eventsOpen && !awaited && !several ? QUIET : PAUSE, Math.min(slowest * 20, QUIET));
    // Timers can fire a little early.
  if (Date.now() > lastRefresh + pause - 100) refresh();
  else plan(Math.min(PAUSE, lastRefresh + pause - Date.now()));
}

/** @param {string} path */
async function request(path) {
  const before = answers.get(path) ?? { value: undefined, at: 0, error: null, status: 0, took: 0, pending: false, tag: null };
  if (before.pending) return;
  answers.set(path, { ...before, pending: true });
  const began = performance.now();
  /** @type {Answer} */
  let next;
  try {
    const response = await fetch(path, {
      headers: { accept: "application/json", ...(before.tag === null ? {} : { "if-none-match": before.tag }) },
      credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_LIMIT),
    });
    stored = response.headers.get("x-strait-bundle");
    if (stored === null) setServerTime(response.headers.get("date"));
    else setStoredTime(stored);
    const same = response.status === 304;
    const value = same ? before.value : await response.json();
    const took = performance.now() - began;
    if (response.status === 401) signedOut = true;
    if (response.ok || same) {
      signedOut = false;
      const missing = response.headers.get("strait-missing-replicas");
      several ||= response.headers.has("strait-replicas");
      next = { value, at: Date.now(), error: null, status: 200, took, pending: false, tag: response.headers.get("etag"), missing };
    } else {
      const error = typeof value?.error === "string" ? value.error : `the control plane answered ${response.status}`;
            // The object does not exist any more, so the page must not keep showing it.
      const kept = response.status === 404 || response.status === 400 ? { value: undefined, tag: null, at: Date.now() } : {};
      next = { ...before, ...kept, error, status: response.status, took, pending: false };
    }
  } catch {
    const error = "the control plane can't be reached; proxies keep what they have";
    next = { ...before, error, status: 0, took: performance.now() - began, pending: false };
  }
  if (wanted.has(path)) answers.set(path, next);
  else answers.delete(path);
  if (!signedOut && next.status === 200 && events === null && Date.now() > followAfter) follow();
  changed();
}

/** Opens the event stream if the page is visible, and closes it if not: browsers allow few connections to one server. */
function follow() {
  const visible = document.visibilityState !== "hidden";
  if (!visible || signedOut) {
    events?.close();
    events = null;
    eventsOpen = false;
    if (visible) refresh();
    return;
  }
  if (events === null) {
    const source = new EventSource("/api/changes");
    events = source;
    let opened = false;
    source.addEventListener("open", () => {
      opened = true;
    });
    source.addEventListener("change", () => {
      eventsOpen = true;
      lastEvent = Date.now();
      clearTimeout(settling);
      settling = setTimeout(refresh, SETTLES);
      const wait = lastRefresh + LEAST - lastEvent;
            // The first event of a stream only confirms that it is open. The refresh that was sent together with the request for
            // the stream is enough, and `settling` refreshes once more.
      if (!opened || wait <= 0) {
        clearTimeout(eventTimer);
        eventTimer = setTimeout(refresh, Math.max(0, wait));
      }
      opened = false;
    });
    source.addEventListener("alive", () => {
      lastEvent = Date.now();
    });
    source.addEventListener("error", () => {
      const brokeOff = eventsOpen;
      eventsOpen = false;
      if (source.readyState === EventSource.CLOSED) {
                // The server refused the stream. `request` opens it again after an answer, once `REFUSED_FOR` has passed.
        events = null;
        followAfter = Date.now() + REFUSED_FOR;
      }
            // The control plane may have stopped: request soon instead of at the next regular refresh.
      if (brokeOff) {
        clearTimeout(eventTimer);
        eventTimer = setTimeout(refresh, 1_000);
      }
      changed();
    });
  }
  refresh();
}
