// Frame of the page: the navigation, the current view, and how fresh its data is.

import * as api from "./api.js";
import { h, icon, patch } from "./dom.js";
import { quoted, span } from "./format.js";
import { clustersPage } from "./clusters.js";
import { explainPage } from "./explain.js";
import { drawLanes, mapPage } from "./map.js";
import { proxiesPage } from "./proxies.js";
import { drawFlow, servicesPage } from "./services.js";
import { timelinePage } from "./timeline.js";
import { trustPage } from "./trust.js";

/**
 * Place: the location hash, `#/page/part/part?name=value`.
 * @typedef {{ page: string, parts: string[], query: URLSearchParams }} Place
 * @typedef {{ place: Place, redraw: () => void, go: (hash: string) => void, command: (words: string[]) => HTMLElement }} Context
 * A view asks for all its data when it is created. Its body is created once the answers in `needs` have arrived.
 * @typedef {{ title: string, command: string[], needs: string[], body: () => (Node | string | false | null)[], lead?: Node | string | null }} View
 */

/** @type {{ page: string, title: string, sign: string, draw: (context: Context) => View }[]} */
const PAGES = [
  { page: "map", title: "Map", sign: "map", draw: mapPage },
  { page: "clusters", title: "Clusters", sign: "boxes", draw: clustersPage },
  { page: "services", title: "Services", sign: "flow", draw: servicesPage },
  { page: "proxies", title: "Proxies", sign: "dots", draw: proxiesPage },
  { page: "explain", title: "Explain", sign: "ladder", draw: explainPage },
  { page: "timeline", title: "Timeline", sign: "clock", draw: timelinePage },
  { page: "trust", title: "Trust", sign: "shield", draw: trustPage },
];

/** Age in milliseconds from which data is shown as old. */
const STALE_AFTER = 25_000;

const THEMES = ["auto", "light", "dark"];
let theme = stored() ?? "auto";
let copied = "";
let drawn = "";
/** Duration and end of the last drawing, in milliseconds. */
let cost = 0;
let last = 0;

/** @returns {string | null} */
function stored() {
  try {
    return localStorage.getItem("strait-theme");
  } catch {
    return null;
  }
}

/** @returns {Place} */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: parts[0] || "map", parts: parts.slice(1), query: new URLSearchParams(query ?? "") };
}

/** @param {string} hash */
function go(hash) {
  location.hash = hash;
}

let planned = false;
/** Schedules a drawing, unless one is scheduled already. */
function redraw() {
  if (planned) return;
  planned = true;
  queueMicrotask(() => {
    planned = false;
    const began = performance.now();
    draw();
    last = performance.now();
    cost = last - began;
  });
}

function draw() {
  const here = place();
  const page = PAGES.find((one) => one.page === here.page) ?? PAGES[0];
  api.begin();
  const context = { place: here, redraw, go, command };
  const view = viewOf(page, context);
  const answers = view.needs.map((path) => ({ path, answer: api.get(path) }));
  api.end();
  const fresh = api.freshness();
  const missing = answers.some(({ answer }) => answer === undefined || (answer.value === undefined && answer.error === null));
  const failed = answers.find(({ answer }) => answer?.value === undefined && answer?.error);

  let content;
  if (fresh.signedOut) content = [entry()];
  else if (failed?.answer?.error) content = [heading(page.title, null), failure(failed.answer.error, failed.answer.status)];
  else if (missing) content = [heading(page.title, null), loading()];
  else content = [heading(view.title, view.lead ?? null, command(view.command, "command")), ...view.body()];

  const root = h("div", { id: "root" },
    h("a", { class: "skip", href: "#main", onclick: skip }, "Skip to the content"),
    header(page.page, fresh),
    h("main", { id: "main", tabindex: "-1", "data-page": page.page }, content.filter((one) => one !== null && one !== false)),
    h("p", { class: "unseen", role: "status", "aria-live": "polite" }, copied || (missing ? "Loading" : "")));
  document.documentElement.dataset.theme = theme;
  document.title = fresh.signedOut ? "Strait" : `${view.title} · Strait`;
  const shown = document.getElementById("root");
  const at = location.hash;
  if (shown) patch(shown, root);
  else document.body.append(root);
  if (drawn !== "" && drawn.split("?")[0] !== at.split("?")[0]) {
    window.scrollTo(0, 0);
    document.getElementById("title")?.focus({ preventScroll: true });
  }
  drawn = at || "#/";
  document.documentElement.dataset.ready = missing ? "" : drawn;
  measure();
}

/**
 * Returns the view of a page, or a notice if the page can't be drawn. The answers or the bundle may come from a different
 * version than this script, and must then not look as if they were still loading.
 * @param {{ title: string, draw: (context: Context) => View }} page @param {Context} context @returns {View}
 */
function viewOf(page, context) {
  /** @param {unknown} error */
  const undrawable = (error) => [failure(`This page can't read the control plane's answer, which may come from a different version: ${error}`, 200)];
  try {
    const view = page.draw(context);
    const body = () => {
      try {
        return view.body();
      } catch (error) {
        return undrawable(error);
      }
    };
    return { ...view, body };
  } catch (error) {
    return { title: page.title, needs: [], command: ["strait", "status"], body: () => undrawable(error) };
  }
}

/** Draws the lines between elements, whose positions are known only after the layout. */
function measure() {
  drawLanes();
  drawFlow();
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/**
 * @param {string} current
 * @param {ReturnType<typeof api.freshness>} fresh
 */
function header(current, fresh) {
  const links = PAGES.map(({ page, title, sign }) =>
    h("a", { href: `#/${page}`, "aria-current": page === current ? "page" : null }, icon(sign), h("span", {}, title)));
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const sign = theme === "light" ? "sun" : theme === "dark" ? "moon" : "auto";
  return h("header", { class: "bar" },
    h("a", { class: "brand", href: "#/map", "aria-label": "Strait, to the map" },
      h("img", { src: "/page/icon.svg", alt: "", width: "28", height: "28" }), h("span", {}, "Strait")),
    h("nav", { "aria-label": "Pages" }, links),
    h("div", { class: "tools" },
      freshness(fresh),
      h("button", {
        type: "button", class: "quiet", title: `Colours: ${theme}`, "aria-label": `Colours: ${theme}; change to ${next}`,
        onclick: () => {
          theme = next;
          try {
            localStorage.setItem("strait-theme", next);
          } catch {
                        // Without storage the choice lasts until the page is closed.
          }
          redraw();
        },
      }, icon(sign))));
}

/** @param {ReturnType<typeof api.freshness>} fresh */
function freshness(fresh) {
  if (fresh.signedOut) return h("span", { class: "fresh idle" }, icon("lock"), h("span", {}, "no session"));
  if (fresh.oldest === 0) return h("span", { class: "fresh idle" }, icon("sync"), h("span", {}, "loading"));
  if (fresh.stored) return h("span", { class: "fresh idle" }, icon("clock"), h("span", {}, `bundle of ${fresh.stored.slice(0, 16).replace("T", " ")} UTC`));
  const old = Date.now() - fresh.oldest;
  if (fresh.failing) {
    return h("span", { class: "fresh bad" }, icon("bad"), h("span", {}, `no answer, data from ${span(old / 1000)} ago`));
  }
  if (Date.now() - fresh.current > STALE_AFTER) {
    return h("span", { class: "fresh doubtful" }, icon("clock"), h("span", {}, `data from ${span(old / 1000)} ago`));
  }
  if (fresh.missing.length) {
    return h("span", { class: "fresh doubtful" }, icon("warn"), h("span", {}, `without replica ${fresh.missing.join(", ")}`));
  }
  return h("span", { class: "fresh good" }, h("span", { class: "pulse", "aria-hidden": "true" }), h("span", {}, fresh.live ? "live" : "up to date"));
}

/** @param {string} title @param {Node | string | null} lead @param {Node} [line] */
const heading = (title, lead, line) =>
  h("div", { class: "heading" }, h("h1", { id: "title", tabindex: "-1" }, title), lead && h("div", { class: "lead" }, lead), line);

/**
 * Returns a command line to copy: it prints what the page shows, or does what the page recommends.
 * @param {string[]} words
 * @param {string} [id] id of the line that prints what the page shows
 */
function command(words, id) {
  const line = words.map(quoted).join(" ");
  const isCopied = copied === `Copied: ${line}`;
  return h("span", { class: "command" },
    h("span", { class: "prompt", "aria-hidden": "true" }, "$"),
    h("code", { id: id ?? null }, line),
    h("button", { type: "button", class: "quiet", "aria-label": `Copy the command ${line}`, onclick: (/** @type {any} */ event) => void copy(line, event.currentTarget) },
      icon(isCopied ? "ok" : "copy"), h("span", {}, isCopied ? "Copied" : "Copy")));
}

/** @param {string} line @param {Element} button */
async function copy(line, button) {
  try {
    await navigator.clipboard.writeText(line);
    copied = `Copied: ${line}`;
  } catch {
        // The clipboard works only over https or on this machine. Select the command instead.
    const shown = button.parentElement?.querySelector("code");
    if (shown) getSelection()?.selectAllChildren(shown);
    copied = "The command is selected: copy it";
  }
  redraw();
  setTimeout(() => {
    copied = "";
    redraw();
  }, 2000);
}

const loading = () =>
  h("div", { class: "loading", "aria-busy": "true" }, [1, 2, 3].map(() => h("div", { class: "bone" })), h("p", {}, "Asking the control plane"));

/** @param {string} error @param {number} status */
function failure(error, status) {
  const title = status === 503 ? "Not ready yet" : status === 404 ? "Not found" : status === 0 ? "No answer" : "This can't be shown";
  return h("section", { class: "card notice", role: "alert" },
    h("h2", {}, icon(status === 503 ? "sync" : "warn"), title),
    h("p", {}, error),
    h("p", {}, h("button", { type: "button", onclick: api.refresh }, "Ask again")));
}

/** Returns the notice for visitors without a session. */
function entry() {
  return h("section", { class: "card entry" },
    h("img", { src: "/page/icon.svg", alt: "", width: "56", height: "56" }),
    h("h1", { id: "title", tabindex: "-1" }, "This page needs a session"),
    h("p", {}, "It shows what the admin token gives access to. On a machine that has the token, run:"),
    command(["strait", "ui"]),
    h("p", {}, "The command opens this page with a link that works once and for one minute. ",
      "A session ends when the control plane's process ends, after 30 minutes without an open page, and after 12 hours."),
    h("p", { class: "fine" }, "For a control plane in a cluster, forward its port first: ",
      h("code", {}, "kubectl -n strait-system port-forward deploy/strait 15014")));
}

addEventListener("hashchange", redraw);
addEventListener("resize", measure);
document.fonts?.ready.then(measure);
// Ages grow while nothing else changes. A large mesh, which takes longer to draw, is drawn less often.
setInterval(() => {
  if (document.visibilityState !== "hidden" && performance.now() - last > cost * 20) redraw();
}, 1000);
// Measures again when the system changes between dark and light.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", measure);
document.documentElement.dataset.theme = theme;
api.start(redraw);
redraw();
