// Recent changes: the object that caused each, its effect, and how soon proxies acknowledged it.

import * as api from "./api.js";
import { causeName, changeHref, changePage, milliseconds, nameOfId } from "./change.js";
import { h, svg } from "./dom.js";
import { now, number, plural, text } from "./format.js";
import { rolloutCards, rolloutPage } from "./rollout.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** Formats the time of day in UTC, to a millisecond, with the date unless it is today, like the CLI. @param {any} row */
function timeOfDay(row) {
  const [day, time] = String(row.at).split("T");
  if (time === undefined) return day;
  const short = time.replace(/Z$/, "").slice(0, 12);
  return new Date(now()).toISOString().startsWith(day) ? short : `${day} ${short}`;
}

/** Names the proxies that refused the change, as far as they are known. @param {any} row */
const refusers = (row) => (row.refusedBy ?? []).map(nameOfId).join(", ");

/** Formats the first object behind a change, and the number of further ones, in the CLI's words. @param {any} row */
function cause(row) {
  const more = row.cause ? row.otherCauses.length + row.moreCauses : 0;
  return `${causeName(row.cause)}${more ? `, ${more} more` : ""}`;
}

/**
 * Returns how many of the proxies that were sent the change have acknowledged it.
 * @param {any} row
 * @returns {{ look: import("./states.js").Look, words: string }}
 */
function followed(row) {
  const of = `${number(row.acknowledged)} of ${number(row.proxies)}`;
  if (row.refused > 0 && row.acknowledged > 0) return { look: { tone: "doubtful", icon: "warn", rank: 3 }, words: `${of}, ${number(row.refused)} refused` };
  if (row.refused > 0) return { look: { tone: "bad", icon: "bad", rank: 4 }, words: `${of}, ${number(row.refused)} refused` };
  if (row.waiting > 0) return { look: { tone: "info", icon: "sync", rank: 2 }, words: of };
  if (row.acknowledged < row.proxies) return { look: { tone: "doubtful", icon: "warn", rank: 1 }, words: of };
  if (row.proxies === 0) return { look: { tone: "idle", icon: "ok", rank: 0 }, words: "0" };
  return { look: { tone: "good", icon: "ok", rank: 0 }, words: number(row.proxies) };
}

/** @param {Context} context @returns {View} */
export function timelinePage(context) {
  const [part] = context.place.parts;
  if (part === "rollout") return rolloutPage(context);
  if (part) return changePage(context, part, followed);
  const { place, redraw, go } = context;
  const cards = rolloutCards(context);
  const needs = ["/debug/events"];
  const all = [...(api.get("/debug/events")?.value ?? [])].reverse();
    // Answers of proxies cause no event.
  if (all.some((row) => row.waiting > 0 && now() - Date.parse(row.at) < 60_000)) api.expect();
  const filter = place.query.get("filter") ?? "";
  const rows = all.filter((row) => `${cause(row)} ${row.effect}`.toLowerCase().includes(filter.toLowerCase()));
  const refused = all.filter((row) => row.refused > 0).length;
    // A few changes take far longer than most. Their bars fill the column, so that the others stay distinguishable.
  const sorted = rows.slice(0, 100).map((row) => row.ms).sort((a, b) => a - b);
  const most = Math.max(0.001, (sorted[Math.floor(sorted.length * 0.9)] ?? 1) * 1.2);
  return {
    title: "Timeline", needs, command: ["strait", "events"],
    lead: all.length === 0 ? null : refused
      ? badge({ tone: "bad", icon: "bad", rank: 1 }, `${plural(refused, "change")} refused by a proxy`)
      : `${plural(all.length, "change")}, newest first`,
    body: () => [
      ...cards,
      h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        h("label", {}, h("span", {}, "Find"), h("input", { type: "search", name: "filter", value: filter, placeholder: "object, cluster or service", autocomplete: "off",
          oninput: (/** @type {any} */ event) => go(`#/timeline${event.target.value ? `?${new URLSearchParams({ filter: event.target.value })}` : ""}`) }))),
      table("changes", [
        { header: "Time", cell: (row) => h("a", { class: "mono short", href: changeHref(row) }, timeOfDay(row)) },
        { header: "Cause", cell: cause, wide: true },
        { header: "Effect", cell: (row) => [text(row.effect), refusers(row) && h("p", { class: "fine" }, `refused by ${refusers(row)}`)], wide: true },
        { header: "Proxies", cell: (row) => badge(followed(row).look, followed(row).words), key: (row) => followed(row).look.rank },
        { header: "Took", cell: (row) => [h("span", { class: "short" }, milliseconds(row.ms)), bar(row, most)], key: (row) => row.ms },
      ], rows, redraw, { empty: all.length ? "No change matches." : "Nothing has changed since the control plane was started." }),
      rows.length > 0 && h("p", { class: "fine" }, "Bars start when the control plane received a change: blue until it was published, green until the last proxy answered. Times are UTC."),
    ],
  };
}

/** @param {any} row @param {number} most */
function bar(row, most) {
  const x = (/** @type {number} */ ms) => Math.min(100, (ms / most) * 100);
  return svg("svg", { class: "took", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: row.refused > 0 ? "bad" : "good", x: 0, y: 0, width: Math.max(1, x(row.ms)).toFixed(1), height: 6 }),
    svg("rect", { class: "info", x: 0, y: 0, width: Math.max(0.5, x(row.publishedMs)).toFixed(1), height: 6 }));
}
