// What the control plane answers, kept for as long as somebody looks at it, and when to ask again.
//
// A stream of events says that something has changed, and then what is shown is asked for again; while it says nothing, next to nothing is
// asked. What is answered as before is not sent again.

import { setServerTime, setStoredTime } from "./format.js";

/**
 * @typedef {{ value: any, at: number, error: string | null, status: number, took: number, pending: boolean, tag: string | null }} Answer
 */

/** How often what is shown is asked for where nobody says that it has changed, and while something is awaited that makes no event. */
const PAUSE = 10_000;
/** How often it is asked for all the same while events are listened to, and however long answers take: a slow one says nothing of the next. */
const QUIET = 60_000;
/** After a change proxies acknowledge, which makes no event. The server announces changes no more often than each two seconds. */
const SETTLES = 2_500;
/** However much changes, all that is shown is asked for no more often than this: a hundred pages are to cost the server little. */
const LEAST = 2_000;
/** A stream on which nothing was heard for so long has broken off: the server says every twenty seconds that it is there. */
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
/** When something was heard by it last. */
let heard = 0;
let signedOut = false;
/** When the answers were stored, where they come from a bundle. @type {string | null} */
let stored = null;
/** Before this nobody asks to listen again, who was told that enough do. */
let followAfter = 0;
/** @type {number | undefined} */
let timer;
/** For what was told. @type {number | undefined} */
let told;
/** For when a change has settled. @type {number | undefined} */
let settling;
/** When all was asked for last. */
let asked = 0;
/** Whether something is shown that is about to change without an event. */
let awaited = false;

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

/** For views: something is shown that will change soon, and of which no event tells, as proxies that have not answered yet. */
export function expect() {
  awaited = true;
}

/** Begins a drawing: what is not asked for until its end is forgotten then. */
export function begin() {
  wanted = new Set();
  awaited = false;
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
  // While nothing is told, what was answered before is still so.
  const live = eventsOpen && Date.now() - heard < SILENT;
  return { signedOut, oldest, current: Math.max(oldest, live ? Math.min(heard, oldest + QUIET) : 0), failing: failure !== undefined, live, stored };
}

/** Asks for all that is shown. */
export function refresh() {
  clearTimeout(told);
  asked = Date.now();
  plan(PAUSE);
  if (document.visibilityState === "hidden") return;
  // What is stored stays as it is.
  for (const path of wanted) if (stored === null || !answers.has(path) || answers.get(path)?.error) void ask(path);
}

/** @param {number} pause */
function plan(pause) {
  clearTimeout(timer);
  timer = setTimeout(turn, signedOut ? 5_000 : pause);
}

/** Asks for all that is shown once that is due without an event; until then looks now and then whether it has become due sooner. */
function turn() {
  if (eventsOpen && Date.now() - heard > SILENT) {
    events?.close();
    events = null;
    eventsOpen = false;
    follow();
    return;
  }
  // What takes the server long is asked for less often.
  const slowest = Math.max(0, ...[...answers.values()].map((one) => one.took));
  const pause = Math.max(signedOut ? 5_000 : eventsOpen && !awaited ? QUIET : PAUSE, Math.min(slowest * 20, QUIET));
  // Timers may be a little early.
  if (Date.now() > asked + pause - 100) refresh();
  else plan(Math.min(PAUSE, asked + pause - Date.now()));
}

/** @param {string} path */
async function ask(path) {
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
      next = { value, at: Date.now(), error: null, status: 200, took, pending: false, tag: response.headers.get("etag") };
    } else {
      const error = typeof value?.error === "string" ? value.error : `the control plane answered ${response.status}`;
      // What is no more must not look as if it were.
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
    let opened = false;
    source.addEventListener("open", () => {
      opened = true;
    });
    source.addEventListener("change", () => {
      eventsOpen = true;
      heard = Date.now();
      clearTimeout(settling);
      settling = setTimeout(refresh, SETTLES);
      const wait = asked + LEAST - heard;
      // The first event of a stream says no more than that it is there: what was asked for with it is asked for once more when it has settled.
      if (!opened || wait <= 0) {
        clearTimeout(told);
        told = setTimeout(refresh, Math.max(0, wait));
      }
      opened = false;
    });
    source.addEventListener("alive", () => {
      heard = Date.now();
    });
    source.addEventListener("error", () => {
      const brokeOff = eventsOpen;
      eventsOpen = false;
      if (source.readyState === EventSource.CLOSED) {
        // Refused: asked for again with an answer after a while.
        events = null;
        followAfter = Date.now() + REFUSED_FOR;
      }
      // Whoever ends streams may have ended: asked at once, and not when it would be time to.
      if (brokeOff) {
        clearTimeout(told);
        told = setTimeout(refresh, 1_000);
      }
      changed();
    });
  }
  refresh();
}
