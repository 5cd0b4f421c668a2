// Proxies as squares, each colored by the worst state of its types; and the page of one proxy, type by type.

import * as api from "./api.js";
import { h, icon } from "./dom.js";
import { age, plural, proxyName, proxyPlace, text } from "./format.js";
import { help, mend } from "./mend.js";
import { PROXIES, isOfAgent, proxyState, typeState } from "./states.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** Maximum number of squares and of clusters drawn, the worst first. The table lists all. */
const SQUARES_MAX = 6000;
const FLEETS_MAX = 200;
/** Number of proxies in a cluster from which squares are small. */
const SMALL_FROM = 400;

/** @param {any} proxy */
export const proxyHref = (proxy) => `#/proxies/${encodeURIComponent(proxy.key)}`;

/** @param {Context} context @returns {View} */
export function proxiesPage({ place, redraw, go }) {
  const needs = ["/debug/proxies"];
  const all = api.get("/debug/proxies")?.value ?? [];
    // Acknowledgements cause no event.
  if (all.some((row) => proxyState(row) === "waits")) api.expect();
  const [key] = place.parts;
  if (key) return one(key, all.find((row) => row.key === key), needs);
  const filter = place.query.get("filter") ?? "";
  const state = place.query.get("state") ?? "";
  const rows = all.map((row) => ({ ...row, state: proxyState(row), place: proxyPlace(row) }))
    .filter((row) => (!state || row.state === state) && `${row.place} ${row.network} ${row.version} ${row.type}`.toLowerCase().includes(filter.toLowerCase()))
    .sort((a, b) => PROXIES[b.state].rank - PROXIES[a.state].rank);
  /** @type {Map<string, any[]>} */
  const clusters = new Map();
  for (const row of rows.filter((one) => !isOfAgent(one))) {
    if (!clusters.has(row.cluster)) clusters.set(row.cluster, []);
    clusters.get(row.cluster)?.push(row);
  }
  const counts = (/** @type {any[]} */ of, /** @type {string} */ what) => of.filter((row) => row.state === what).length;
  let room = SQUARES_MAX;
  const fleets = [...clusters].slice(0, FLEETS_MAX).map(([cluster, of]) => {
    const drawn = of.slice(0, room);
    room -= drawn.length;
    return { cluster, of, drawn };
  });
  /** @param {string} nextState @param {string} nextFilter */
  const choose = (nextState, nextFilter) => {
    const query = new URLSearchParams();
    if (nextState) query.set("state", nextState);
    if (nextFilter) query.set("filter", nextFilter);
    go(`#/proxies${query.size ? `?${query}` : ""}`);
  };
  return {
    title: "Proxies", needs, command: ["strait", "proxy", "list"],
    lead: h("div", { class: "chips" }, ["NACK", "waits", "ok"].map((what) => [what, all.filter((row) => !isOfAgent(row) && proxyState(row) === what).length])
      .filter(([what, count]) => count || what === "ok")
      .map(([what, count]) => h("a", { class: "chip", href: `#/proxies?state=${what}` }, badge(PROXIES[what], `${count} ${PROXIES[what].word}`)))),
    body: () => [
      h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        h("label", {}, h("span", {}, "Find"),
          h("input", { type: "search", name: "filter", value: filter, placeholder: "name, @cluster, network, version", autocomplete: "off",
            oninput: (/** @type {any} */ event) => choose(state, event.target.value) })),
        h("label", {}, h("span", {}, "State"),
          h("select", { name: "state", onchange: (/** @type {any} */ event) => choose(event.target.value, filter) },
            ["", ...Object.keys(PROXIES)].map((it) => h("option", { value: it, selected: it === state }, it ? PROXIES[it].word : "all"))))),
      all.length === 0 && h("section", { class: "card notice" }, h("h2", {}, "No proxy is connected"),
        h("p", {}, "One that was refused is not here; its own log says why. A bootstrap for an Envoy: ", h("code", {}, "strait proxy bootstrap"))),
      h("div", { class: "fleets" }, fleets.map(({ cluster, of, drawn }) =>
        h("section", { class: "card fleet", "data-key": `fleet-${cluster}` },
          h("h2", {}, cluster, h("span", { class: "fine" }, ` ${plural(of.length, "proxy", "proxies")}${counts(of, "NACK") ? `, ${counts(of, "NACK")} rejecting` : ""}${counts(of, "waits") ? `, ${counts(of, "waits")} waiting` : ""}`)),
          h("div", { class: of.length >= SMALL_FROM ? "squares small" : "squares", role: "group", "aria-label": `Proxies of ${cluster}; arrow keys move`, onkeydown: move },
            drawn.map((row, at) => h("a", {
              class: `square ${PROXIES[row.state].tone}`, href: proxyHref(row), tabindex: at === 0 ? "0" : "-1",
              "aria-label": `${proxyName(row)}: ${PROXIES[row.state].word}`, title: `${proxyName(row)}: ${PROXIES[row.state].word}`,
            }, of.length < SMALL_FROM && row.state !== "ok" ? icon(PROXIES[row.state].icon) : null))),
          of.length > drawn.length && h("p", { class: "fine" }, `and ${of.length - drawn.length} more in the table`)))),
      clusters.size > FLEETS_MAX && h("p", { class: "fine" }, `and ${plural(clusters.size - FLEETS_MAX, "cluster")} more in the table`),
      table("proxies", [
        { header: "Name", cell: (row) => h("a", { href: proxyHref(row) }, proxyName(row)), key: proxyName },
        { header: "Cluster", cell: (row) => row.cluster, key: (row) => row.cluster },
        { header: "Network", cell: (row) => text(row.network), key: (row) => text(row.network) },
        { header: "State", cell: (row) => badge(PROXIES[row.state], PROXIES[row.state].word), key: (row) => PROXIES[row.state].rank },
        { header: "Version", cell: version, key: version },
        ...["cds", "eds", "lds", "rds"].map((type) => ({ header: type.toUpperCase(), cell: (/** @type {any} */ row) => typeText(row.types[type]) })),
        { header: "Since", cell: (row) => age(row.connectedAt), key: (row) => -Date.parse(row.connectedAt) },
      ], rows, redraw, { empty: all.length ? "No proxy matches." : "No proxy is connected." }),
    ],
  };
}

/** @param {any} row */
const version = (row) => isOfAgent(row) ? "agent" : text(row.version);

/** Formats the state of a type like `strait proxy list`. @param {any} entry */
function typeText(entry) {
  const state = typeState(entry);
  return state === "NACK" || state === "waits" ? `${state} ${age(entry.lastSent)}` : state;
}

/** Moves between squares with the arrow keys: together they are one stop for the Tab key. @param {KeyboardEvent} event */
function move(event) {
  const from = event.target;
  if (!(from instanceof HTMLElement) || !from.parentElement) return;
  const all = [...from.parentElement.children];
  const at = all.indexOf(from);
  const first = all[0].getBoundingClientRect().top;
  const row = Math.max(1, all.findIndex((one) => one.getBoundingClientRect().top > first));
  /** @type {Record<string, number>} */
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -at, End: all.length - 1 - at };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const to = all[Math.min(all.length - 1, Math.max(0, at + step))];
  if (to instanceof HTMLElement) to.focus();
}

/** @param {string} key @param {any} row @param {string[]} needs @returns {View} */
function one(key, row, needs) {
  if (!row) {
    return { title: "Proxy", needs, command: ["strait", "proxy", "list"], body: () => [
      h("section", { class: "card notice" }, h("h2", {}, "Not connected any more"), h("p", {}, `Stream ${key} has ended. The proxy may have opened another stream.`), h("p", {}, h("a", { href: "#/proxies" }, "All proxies")))] };
  }
  const types = Object.entries(row.types ?? {});
  const refused = types.filter(([, entry]) => entry.nack);
  if (refused.length > 0) api.get("/debug/codes");
  return {
    title: `Proxy ${proxyPlace(row)}`, needs, command: ["strait", "proxy", "get", proxyPlace(row)],
    lead: badge(PROXIES[proxyState(row)], PROXIES[proxyState(row)].word),
    body: () => [
      h("p", { class: "links" }, h("a", { href: `#/explain?proxy=${encodeURIComponent(proxyPlace(row))}` }, "Explain a service for it"),
        h("a", { href: `#/map/cluster/${encodeURIComponent(row.cluster)}` }, `Cluster ${row.cluster}`), h("a", { href: "#/proxies" }, "All proxies")),
      ...refused.map(([type, entry]) => h("section", { class: "card bad", role: "note" },
        h("h2", {}, icon("bad"), `${type.toUpperCase()} rejected`), h("p", { class: "said" }, entry.nack.error),
        h("p", {}, "Resources: ", entry.nack.resources.length ? entry.nack.resources.join(", ") : "the proxy named none, so any resource of the response may be the cause"),
        h("p", {}, `It keeps the last accepted version ${text(entry.acked)}.`), mend("STR0507") ?? help("STR0507"))),
      h("section", { class: "card" }, h("dl", { class: "facts-list" }, [
        ["Node", row.id], ["Type", row.type], ["Cluster", row.cluster], ["Network", text(row.network)], ["Identity", row.identity],
        ["Verified", row.verified ? "yes" : "no: its cluster has not reported the pod"], ["Version", text(row.version)],
        ["Connected", `${age(row.connectedAt)} ago, ${row.protocol}`],
      ].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
      table("types", [
        { header: "Type", cell: ([type]) => type.toUpperCase() },
        { header: "State", cell: ([, entry]) => typeText(entry) },
        { header: "Sent", cell: ([, entry]) => text(entry.sent) }, { header: "Ago", cell: ([, entry]) => age(entry.lastSent) },
        { header: "Accepted", cell: ([, entry]) => text(entry.acked) }, { header: "Accepted ago", cell: ([, entry]) => age(entry.lastAcked) },
      ], types, () => {}, { caption: "Configuration by type" }),
    ],
  };
}
