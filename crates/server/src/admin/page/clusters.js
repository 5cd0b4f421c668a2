// The list of clusters, and the page of one cluster with everything that is known about it.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number, plural, text, until } from "./format.js";
import { lastHour, note } from "./history.js";
import { clusterHref, facts, contactAge } from "./map.js";
import { clusterLook, isWell, keptBack } from "./states.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** @param {Context} context @returns {View} */
export function clustersPage({ place, redraw, go }) {
  const needs = ["/debug/clusters"];
  const answer = api.get("/debug/clusters");
  const all = answer?.value ?? [];
  if (answer?.value) note(all, answer.at);
  const [id] = place.parts;
  if (id) return one(id, all.filter((row) => row.id === id), needs);
  const state = place.query.get("state") ?? "";
  const filter = place.query.get("filter") ?? "";
  const rows = all.filter((row) => (!state || row.state === state) && `${row.id} ${row.network ?? ""} ${row.reason ?? ""}`.toLowerCase().includes(filter.toLowerCase()));
  const states = [...new Set(all.map((row) => row.state))].sort();
  /** @param {string} nextState @param {string} nextFilter */
  const choose = (nextState, nextFilter) => {
    const query = new URLSearchParams();
    if (nextState) query.set("state", nextState);
    if (nextFilter) query.set("filter", nextFilter);
    go(`#/clusters${query.size ? `?${query}` : ""}`);
  };
  return {
    title: "Clusters", needs, command: ["strait", "cluster", "list", "-o", "wide"],
    lead: `${plural(all.length, "cluster")}, ${all.filter((row) => row.state === "live").length} live`,
    body: () => [
      h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        h("label", {}, h("span", {}, "Find"),
          h("input", { type: "search", name: "filter", value: filter, placeholder: "name, network or reason", autocomplete: "off",
            oninput: (/** @type {any} */ event) => choose(state, event.target.value) })),
        h("label", {}, h("span", {}, "State"),
          h("select", { name: "state", onchange: (/** @type {any} */ event) => choose(event.target.value, filter) },
            ["", ...states].map((one) => h("option", { value: one, selected: one === state }, one || "all"))))),
      table("clusters", [
        { header: "Cluster", cell: (row) => h("a", { href: `#/clusters/${encodeURIComponent(row.id)}` }, row.id), key: (row) => row.id },
        { header: "Network", cell: (row) => text(row.network), key: (row) => text(row.network) },
        { header: "State", cell: (row) => badge(clusterLook(row), row.state), key: (row) => clusterLook(row).rank },
        { header: "Last hour", cell: lastHour },
        { header: "Last contact", cell: contactAge, key: (row) => -(Date.parse(row.lastContact) || 0) },
        { header: "Services", cell: (row) => number(row.services), key: (row) => row.services, number: true },
        { header: "Endpoints", cell: (row) => number(row.endpoints), key: (row) => row.endpoints, number: true },
        { header: "Withheld", cell: (row) => keptBack(row) > 0 ? h("span", { class: "withheld" }, number(row.withheld)) : number(row.withheld), key: (row) => row.withheld, number: true },
        { header: "Credential ends in", cell: (row) => row.credential?.endsSoon ? h("span", { class: "withheld" }, until(row.credential.expires)) : until(row.credential?.expires) },
        { header: "Reason", cell: (row) => text(row.reason), wide: true },
      ], rows, redraw, { empty: all.length ? "No cluster matches." : "No clusters yet: strait cluster add CONTEXT" }),
      all.length > 0 && h("p", { class: "fine" }, "Last hour: the states since you opened this page, and the time before that if the state has not changed. The right end is now."),
    ],
  };
}

/** @param {string} id @param {import("./admin-api.js").Cluster[]} rows @param {string[]} needs @returns {View} */
function one(id, rows, needs) {
  const [row, ...standbys] = rows;
  return {
    title: `Cluster ${id}`, needs, command: ["strait", "cluster", "get", id],
    body: () => row ? [
      h("p", { class: "links" }, h("a", { href: clusterHref(id) }, "On the map"),
        h("a", { href: `#/proxies?filter=${encodeURIComponent(`@${id}`)}` }, "Its proxies"), h("a", { href: "#/clusters" }, "All clusters")),
      h("section", { class: `card ${isWell(row) ? "" : clusterLook(row).tone}` }, h("p", { class: "fine last-hour" }, "Last hour, since you opened this page", lastHour(row)), facts(row)),
      ...standbys.map((standby) => h("section", { class: "card" }, h("h2", {}, "On standby"), facts(standby))),
    ] : [h("section", { class: "card notice" }, h("h2", {}, "Cluster not found"), h("p", {}, `${id} is not a member of the mesh. It was removed, or never was a member.`), h("p", {}, h("a", { href: "#/clusters" }, "All clusters")))],
  };
}
