// What the control plane answers, kept for as long as somebody looks at it, and when to ask again.
//
// A stream of events says that something has changed; then, and now and then, what is shown is asked for again.

import { setServerTime, setStoredTime } from "./format.js";

/**
 * @typedef {{ value: any, at: number, error: string | null, status: number, took: number, pending: boolean }} Answer
 */

/** How often what is shown is asked for without an event: ages of contacts and acknowledgements make none. */
const PAUSE = 10_000;
/** After a change proxies acknowledge; that makes no event either. */
const SETTLES = 1_500;
/** However much changes, all that is shown is asked for no more often than this: a hundred pages are to cost the server little. */
const LEAST = 2_000;
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
let signedOut = false;
/** When the answers were stored, where they come from a bundle. @type {string | null} */
let stored = null;
/** Before this nobody asks to listen again, who was told that enough do. */
let followAfter = 0;
/** @type {number | undefined} */
let timer;
/** For when a change has settled. @type {number | undefined} */
let settling;
/** When all was asked for last. */
let asked = 0;

/** @param {() => void} listener called after each answer */
export function start(listener) {
  changed = listener;
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("online", refresh);
  follow();
}

/**
 * What a view shows: `undefined` where nothing has been answered yet.
 * @param {string} path
 * @returns {Answer | undefined}
 */
export function get(path) {
  wanted.add(path);
  return answers.get(path);
}

/** Begins a drawing: what is not asked for until its end is forgotten then. */
export function begin() {
  wanted = new Set();
}

/** Ends a drawing, and asks for what is new in it. */
export function end() {
  for (const path of answers.keys()) if (!wanted.has(path)) answers.delete(path);
  for (const path of wanted) if (!answers.has(path)) void ask(path);
}

/** How fresh all of it is. */
export function freshness() {
  const shown = [...wanted].map((path) => answers.get(path)).filter((one) => one !== undefined);
  const known = shown.filter((one) => one.at > 0);
  const oldest = known.length ? Math.min(...known.map((one) => one.at)) : 0;
  const failure = shown.find((one) => one.error !== null && one.status === 0);
  return { signedOut, oldest, failing: failure !== undefined, live: eventsOpen, stored };
}

/** Asks for all that is shown. */
export function refresh() {
  clearTimeout(timer);
  asked = Date.now();
  if (document.visibilityState === "hidden") return;
  // What is stored stays as it is.
  for (const path of wanted) if (stored === null || !answers.has(path) || answers.get(path)?.error) void ask(path);
  // What takes the server long is asked for less often.
  const slowest = Math.max(0, ...[...answers.values()].map((one) => one.took));
  timer = setTimeout(refresh, Math.max(signedOut ? 5_000 : PAUSE, slowest * 20));
}

/** @param {string} path */
async function ask(path) {
  const before = answers.get(path) ?? { value: undefined, at: 0, error: null, status: 0, took: 0, pending: false };
  if (before.pending) return;
  answers.set(path, { ...before, pending: true });
  const began = performance.now();
  /** @type {Answer} */
  let next;
  try {
    const response = await fetch(path, {
      headers: { accept: "application/json" }, credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_LIMIT),
    });
    stored = response.headers.get("x-strait-bundle");
    if (stored === null) setServerTime(response.headers.get("date"));
    else setStoredTime(stored);
    const value = await response.json();
    const took = performance.now() - began;
    if (response.status === 401) signedOut = true;
    if (response.ok) {
      signedOut = false;
      next = { value, at: Date.now(), error: null, status: 200, took, pending: false };
    } else {
      const error = typeof value?.error === "string" ? value.error : `the control plane answered ${response.status}`;
      // What is no more must not look as if it were.
      const kept = response.status === 404 || response.status === 400 ? { value: undefined, at: Date.now() } : {};
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

/** Listens for as long as somebody can see the page: browsers allow few connections to one server. */
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
    source.addEventListener("change", () => {
      eventsOpen = true;
      clearTimeout(timer);
      timer = setTimeout(refresh, Math.max(0, asked + LEAST - Date.now()));
      clearTimeout(settling);
      settling = setTimeout(refresh, SETTLES);
    });
    source.addEventListener("error", () => {
      eventsOpen = false;
      if (source.readyState === EventSource.CLOSED) {
        // Refused: asked for again with an answer after a while.
        events = null;
        followAfter = Date.now() + REFUSED_FOR;
      }
      changed();
    });
  }
  refresh();
}
