// The map: networks as land, clusters on the land, gateways as ports, and lanes between the ports.

import * as api from "./api.js";
import { h, icon, svg } from "./dom.js";
import { age, codeOf, number, plural, socket, text } from "./format.js";
import { note } from "./history.js";
import { help, mend } from "./mend.js";
import { heldTrouble, rolloutChip, rolloutTroubles } from "./rollout.js";
import { PROXIES, clusterLook, entryLook, isTrouble, isWell, keptBack, needsLook } from "./states.js";
import { badge, table } from "./table.js";
import * as traffic from "./traffic.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** Number of clusters up to which all are drawn in full. More than that is a crowd. */
const ALL_DRAWN = 24;
/** In a crowd, the number of clusters per network that are drawn in full, if they need attention. */
const TROUBLED_DRAWN = 8;
/** Maximum number of networks drawn, those with problems first. The tables list all. */
const LANDS_MAX = 60;
/** Maximum number of problems listed next to the map, the worst first. */
const TROUBLES_SHOWN = 40;
/** Number of networks up to which each pair has a lane. With more networks, only the selected one has lanes. */
const ALL_LANES = 6;

/**
 * Data that the map shows.
 * @typedef {{ name: string, row: any, clusters: any[], entry: ReturnType<typeof entryLook>, endpoints: number, rank: number }} Area
 * @typedef {{ rank: number, look: import("./states.js").Look, title: string, href: string | null, text: string }} Trouble
 * @typedef {{ areas: Area[], clusters: any[], proxies: any, rollout: any, settings: Trouble[] }} Mesh
 */

/** @type {{ areas: Area[], selected: string | null, traffic: any }} */
let shown = { areas: [], selected: null, traffic: null };

/** Text that identifies the drawn lanes, to find out whether they have changed. */
let drawn = "";

/** Proxies of the mesh if there is no summary, as in a bundle of an older control plane. */
const NO_PROXIES = { connected: 0, refusing: 0, waiting: 0, clusters: {}, refusals: [] };

/** Returns the name of a network for links and commands. @param {string} network */
const called = (network) => (network === "" ? "<none>" : network);
/** Returns the name of a network for readers. @param {string} network */
const titled = (network) => (network === "" ? "without a name" : network);
/** @param {string} name */
export const clusterHref = (name) => `#/map/cluster/${encodeURIComponent(name)}`;
/** @param {string} name */
const networkHref = (name) => `#/map/network/${encodeURIComponent(called(name))}`;

/** @returns {Mesh} */
function mesh() {
  const clusters = api.get("/debug/clusters")?.value ?? [];
  const networks = api.get("/debug/networks")?.value ?? [];
  const { proxies = NO_PROXIES, rollout, ...rest } = api.get("/debug/summary")?.value ?? {};
    // Acknowledgements cause no event.
  if (proxies.waiting > 0) api.expect();
    // A standby is a second entry with the same id, and belongs to no network.
  /** @type {Map<string, any[]>} */
  const within = new Map(networks.map((/** @type {any} */ row) => [row.network, []]));
  const seen = new Set();
  for (const cluster of clusters) {
    const home = !seen.has(cluster.id) && networks.find((/** @type {any} */ row) => row.clusters.includes(cluster.id));
    seen.add(cluster.id);
    const network = cluster.network ?? (home ? home.network : "");
    if (!within.has(network)) within.set(network, []);
    within.get(network)?.push(cluster);
  }
  const areas = [...within].filter(([name, members]) => name !== "" || members.length > 0).map(([name, members]) => {
    const row = networks.find((/** @type {any} */ one) => one.network === name) ?? { network: name, clusters: [], gateways: [] };
    const endpoints = members.reduce((sum, one) => sum + one.endpoints, 0);
        // The only network of a mesh is never entered from another one.
    const entry = entryLook(row, endpoints > 0 && networks.length > 1);
    members.sort((a, b) => clusterLook(b).rank - clusterLook(a).rank || Number(needsLook(b)) - Number(needsLook(a)) || a.id.localeCompare(b.id, "en", { numeric: true }));
    const rank = Math.max(networks.length > 1 ? entry.rank : 0, ...members.map((one) => clusterLook(one).rank));
    return { name, row, clusters: members, entry, endpoints, rank };
  });
    // A few networks keep their order. In a crowd those with problems come first.
  if (clusters.length > ALL_DRAWN) areas.sort((a, b) => b.rank - a.rank || a.name.localeCompare(b.name, "en", { numeric: true }));
  return { areas, clusters, proxies, rollout, settings: settings(rest, rollout) };
}

/** @param {Context} context @returns {View} */
export function mapPage({ place, redraw }) {
    // A bundle may come from a control plane that had no summary.
  const hasSummary = api.get("/debug/summary")?.status !== 404;
  const needs = ["/debug/clusters", "/debug/networks", ...(hasSummary ? ["/debug/summary"] : [])];
  const whole = mesh();
  const answer = api.get("/debug/clusters");
  if (answer?.value) note(answer.value, answer.at);
  const [kind, name] = place.parts;
  const cluster = kind === "cluster" ? whole.clusters.find((one) => one.id === name) : undefined;
  const area = kind === "network" ? whole.areas.find((one) => called(one.name) === name) : undefined;
  shown = { areas: whole.areas, selected: area?.name ?? (cluster ? whole.areas.find((one) => one.clusters.includes(cluster))?.name ?? null : null), traffic: traffic.measured() };
    // Ask here: `body` runs after `api.end`, too late to ask for anything.
  if (kind || whole.settings.length > 0) api.get("/debug/codes");
  const command = cluster ? ["strait", "cluster", "get", cluster.id] : area ? ["strait", "network", "get", called(area.name)] : ["strait", "status"];
  return {
    title: cluster ? `Cluster ${cluster.id}` : area ? `Network ${titled(area.name)}` : "Map",
    command, needs, lead: summary(whole),
    body: () => [
      h("div", { class: "split" },
        whole.clusters.length === 0 ? empty() : sea(whole, kind === "cluster" ? name : null),
        h("aside", { class: "panel", "aria-label": "Details" },
          kind && !cluster && !area ? missing(kind, name) : cluster ? clusterPanel(cluster, whole) : area ? networkPanel(area) : troubles(whole))),
      whole.clusters.length > 0 && h("details", { class: "under" },
        h("summary", {}, "The map as tables"),
        table("networks", [
          { header: "Network", cell: (one) => h("a", { href: networkHref(one.name) }, titled(one.name)), key: (one) => one.name },
          { header: "Entry", cell: (one) => badge(one.entry, one.entry.word), key: (one) => one.entry.rank },
          { header: "Gateways", cell: (one) => text(one.row.gateways.map(gatewayText)) },
          { header: "Clusters", cell: (one) => number(one.clusters.length), key: (one) => one.clusters.length, number: true },
          { header: "Endpoints", cell: (one) => number(one.endpoints), key: (one) => one.endpoints, number: true },
        ], whole.areas, redraw, { caption: "Networks" }),
        table("clusters of the map", [
          { header: "Cluster", cell: (one) => h("a", { href: clusterHref(one.id) }, one.id), key: (one) => one.id },
          { header: "Network", cell: (one) => text(one.network), key: (one) => text(one.network) },
          { header: "State", cell: (one) => badge(clusterLook(one), one.state), key: (one) => clusterLook(one).rank },
          { header: "Last contact", cell: contactAge },
          { header: "Endpoints", cell: (one) => number(one.endpoints), key: (one) => one.endpoints, number: true },
          { header: "Withheld", cell: (one) => number(one.withheld), key: (one) => one.withheld, number: true },
        ], whole.clusters, redraw, { caption: "Clusters" }),
        shown.traffic && (shown.traffic.problem ? h("p", { class: "fine" }, shown.traffic.problem) : table("traffic", [
          { header: "From", cell: (one) => one.source, key: (one) => one.source },
          { header: "To", cell: (one) => one.destination, key: (one) => one.destination },
          { header: "Requests", cell: traffic.rate, key: (one) => one.rate, number: true },
          { header: "Errors", cell: traffic.errors, key: (one) => one.errors, number: true },
          { header: "95th percentile", cell: traffic.latency, key: (one) => one.p95 ?? 0, number: true },
        ], shown.traffic.clusters, redraw, { caption: `Traffic of the last ${shown.traffic.window}, from Prometheus` }))),
    ],
  };
}

/** @param {any} gateway */
const gatewayText = (gateway) => `${socket(gateway)}${gateway.dead === true ? " (dead)" : ""}`;

/** @param {Mesh} whole */
function summary({ clusters, proxies, rollout }) {
  /** @type {Map<string, any[]>} */
  const states = new Map();
  for (const one of clusters) states.set(one.state, [...(states.get(one.state) ?? []), one]);
  const byRank = [...states].sort(([, [a]], [, [b]]) => clusterLook(b).rank - clusterLook(a).rank);
  const { connected, refusing, waiting } = proxies;
  return h("div", { class: "chips" },
    byRank.map(([state, all]) => h("a", { class: "chip", href: `#/clusters?state=${state}` }, badge(clusterLook(all[0]), `${all.length} ${state}`))),
    clusters.length > 0 && h("a", { class: "chip", href: "#/proxies" },
      badge(refusing ? PROXIES.NACK : waiting ? PROXIES.waits : PROXIES.ok,
        [plural(connected, "proxy", "proxies"), refusing && `${number(refusing)} rejecting`, waiting && `${number(waiting)} waiting`].filter(Boolean).join(", "))),
    rolloutChip(rollout));
}

function empty() {
  return h("section", { class: "sea empty-sea" },
    h("div", { class: "card notice" },
      h("h2", {}, "No clusters yet"),
      h("p", {}, "A cluster joins with a Secret that contains its kubeconfig. This command creates one, with the least privileges that suffice:"),
      h("p", {}, h("code", {}, "strait cluster add CONTEXT"))));
}

/** @param {Mesh} whole @param {string | null} selected */
function sea(whole, selected) {
  const crowd = whole.clusters.length > ALL_DRAWN;
  return h("section", { class: crowd ? "sea crowd" : `sea few n${Math.min(whole.areas.length, 4)}`, "aria-label": "Map of networks and clusters" },
    svg("svg", { class: "lanes", "aria-hidden": "true", "data-drawn": "" }),
    h("div", { class: "areas" }, whole.areas.slice(0, LANDS_MAX).map((area) => land(area, whole, crowd, selected))),
    whole.areas.length > LANDS_MAX && h("p", { class: "legend" }, `and ${plural(whole.areas.length - LANDS_MAX, "network")} more, ${whole.areas[LANDS_MAX].rank > 0 ? "first those that need a look" : "none of which needs a look"}: see the tables below`),
    legend(whole));
}

/** @param {Area} area @param {Mesh} whole @param {boolean} crowd @param {string | null} selected */
function land(area, whole, crowd, selected) {
  const troubled = area.clusters.filter(needsLook);
  const calm = area.clusters.filter((one) => !needsLook(one));
  const drawn = crowd ? troubled.slice(0, TROUBLED_DRAWN) : area.clusters;
  const rest = crowd ? [...troubled.slice(TROUBLED_DRAWN), ...calm] : [];
  const entries = whole.areas.length > 1;
  const broken = entries && area.entry.rank > 0;
  return h("section", {
    class: `land ${broken ? area.entry.tone : ""} ${shown.selected === area.name ? "chosen" : ""}`,
    "data-key": `area-${area.name}`, "data-area": area.name, "aria-label": `Network ${titled(area.name)}`,
  },
    h("h2", {}, h("a", { href: networkHref(area.name) }, titled(area.name))),
    entries && h("p", { class: `port ${area.entry.tone}` }, icon(area.entry.icon),
      h("span", {}, area.entry.rank > 0 ? area.entry.word : area.row.gateways.length === 1 ? gatewayText(area.row.gateways[0])
        : area.row.gateways.length ? plural(area.row.gateways.length, "gateway") : area.entry.word)),
    drawn.length > 0 && h("ul", { class: "boxes" }, drawn.map((one) => box(one, whole, one.id === selected))),
    rest.length > 0 && h("details", { class: "rest" },
      h("summary", {}, badge(clusterLook(rest[0]), crowdWords(rest)),
        h("span", { class: "ticks", "aria-hidden": "true" }, rest.slice(0, 60).map((one) => h("i", { class: clusterLook(one).tone })))),
      h("ul", { class: "names" }, rest.slice(0, 200).map((one) => h("li", {}, h("a", { href: clusterHref(one.id), class: clusterLook(one).tone }, one.id))),
        rest.length > 200 && h("li", {}, h("a", { href: "#/clusters" }, `and ${rest.length - 200} more`)))),
    area.clusters.length === 0 && h("p", { class: "fine" }, "no clusters"),
    entries && area.entry.rank + area.endpoints > 0 && h("span", { class: `quay ${area.entry.tone}`, "data-quay": area.name, "aria-hidden": "true" }, icon(area.entry.icon)));
}

/** @param {any[]} clusters */
function crowdWords(clusters) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const one of clusters) counts.set(one.state, (counts.get(one.state) ?? 0) + 1);
  return [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
}

/** Formats the number of proxies connected from a cluster. @param {any} cluster @param {Mesh} whole @returns {string} */
const proxiesOf = (cluster, whole) => plural(Object.hasOwn(whole.proxies.clusters, cluster.id) ? whole.proxies.clusters[cluster.id].connected : 0, "proxy", "proxies");

/**
 * Formats the time since the last contact with the cluster's API server. A live cluster is in contact all the time, without
 * an event for it, so its time counts up to the answer and not up to now.
 * @param {any} cluster
 */
export const contactAge = (cluster) => age(cluster.lastContact, cluster.state === "live" ? api.get("/debug/clusters")?.at : undefined);

/** @param {any} cluster @param {Mesh} whole @param {boolean} selected */
function box(cluster, whole, selected) {
  const look = clusterLook(cluster);
  const since = cluster.lastContact === null ? "never heard" : `heard ${contactAge(cluster)} ago`;
  return h("li", { "data-key": `cluster-${cluster.id}-${cluster.secret}` },
    h("a", { class: `box ${look.tone}`, href: clusterHref(cluster.id), "aria-current": selected ? "true" : null },
      h("span", { class: "sign" }, icon(look.icon)),
      h("span", { class: "name" }, cluster.id),
      h("span", { class: "state" }, cluster.state),
      h("span", { class: "facts" }, since),
      h("span", { class: "facts pair" }, h("span", {}, plural(cluster.endpoints, "endpoint")), h("span", {}, proxiesOf(cluster, whole))),
      keptBack(cluster) > 0 && h("span", { class: "withheld" }, icon("bad"), `${number(keptBack(cluster))} withheld`),
      cluster.credential?.endsSoon === true && h("span", { class: "withheld" }, icon("clock"), "token ends soon")));
}

/** @param {Mesh} whole */
function legend(whole) {
  const crowded = whole.areas.length > ALL_LANES;
  if (whole.areas.length < 2) return null;
  return h("p", { class: "legend" },
    h("span", {}, h("i", { class: "lane good" }), "can be entered"),
    h("span", {}, h("i", { class: "lane doubtful" }), "some gateways dead"),
    h("span", {}, h("i", { class: "lane bad" }), "can't be entered"),
    h("span", {}, crowded ? "lanes of the network that you choose" : "wider: more endpoints behind it"));
}

/** @param {Mesh} whole */
function troubles(whole) {
  const rows = [
    ...whole.clusters.filter((one) => !isWell(one)).map((one) => ({
      rank: clusterLook(one).rank, look: clusterLook(one), title: `Cluster ${one.id}`, href: clusterHref(one.id),
      text: `${one.state}${one.reason ? `: ${one.reason}` : ""}`,
    })),
    ...whole.clusters.filter((one) => keptBack(one) > 0).map((one) => ({
      rank: 5, look: { tone: "bad", icon: "bad", rank: 5 }, title: `Cluster ${one.id}`, href: clusterHref(one.id),
      text: `${plural(keptBack(one), "endpoint")} withheld${Object.keys(one.withheldBy ?? {}).filter(isTrouble).map((code) => ` ${code}`).join("")}`,
    })),
    ...whole.areas.filter((one) => whole.areas.length > 1 && one.entry.rank > 0).map((one) => ({
      rank: one.entry.rank, look: one.entry, title: `Network ${titled(one.name)}`, href: networkHref(one.name), text: one.entry.word,
    })),
    ...whole.proxies.refusals.map((/** @type {any} */ one) => ({
      rank: 6, look: PROXIES.NACK, title: `Proxy ${one.id.split("~")[2] ?? one.id}`, href: `#/proxies/${encodeURIComponent(one.key)}`,
      text: `refused ${Object.entries(one.types).map(([type, error]) => `${type.toUpperCase()}: ${error}`).join("; ")}`,
    })),
    ...whole.clusters.filter((one) => one.credential?.endsSoon === true).map((one) => ({
      rank: 4, look: { tone: "doubtful", icon: "lock", rank: 4 }, title: `Cluster ${one.id}`, href: clusterHref(one.id),
      text: `its token ends at ${one.credential.expires}`,
    })),
    ...whole.clusters.flatMap((one) => yielded(one).map((same) => ({
      rank: 5, look: { tone: "bad", icon: "two", rank: 5 }, title: `Cluster ${one.id}`, href: clusterHref(one.id),
      text: `${plural(same.addresses, "address", "addresses")} of its pods (first ${same.first}) are also addresses of pods of ${same.cluster} in network ${text(same.network)}; proxies of other clusters receive the pods of ${same.holder} STR0414`,
    }))),
    ...whole.settings,
  ].sort((a, b) => b.rank - a.rank);
  const more = rows.length - Math.min(rows.length, TROUBLES_SHOWN) + whole.proxies.refusing - whole.proxies.refusals.length;
  if (rows.length === 0) {
    return h("div", { class: "calm" }, h("span", { class: "big good" }, icon("ok")), h("h2", {}, "Nothing needs a look"),
      h("p", {}, whole.clusters.length ? "All clusters, networks and proxies are healthy." : "There is nothing to show yet."),
      whole.clusters.length > 0 && h("p", { class: "fine" }, "For notes, and for problems that only the clusters' Secrets show: ", h("code", {}, "strait check")));
  }
  return h("div", {},
    h("h2", {}, `${plural(rows.length, "thing needs", "things need")} a look`),
    h("ul", { class: "troubles" }, rows.slice(0, TROUBLES_SHOWN).map((one) => h("li", {},
      one.href
        ? h("a", { href: one.href, class: one.look.tone }, icon(one.look.icon), h("strong", {}, one.title))
        : h("span", { class: `what ${one.look.tone}` }, icon(one.look.icon), h("strong", {}, one.title)),
      h("p", {}, one.text), one.href ? help(one.text) : settle(one.text)))),
    more > 0 && h("p", { class: "fine" }, `and ${number(more)} more: strait check`));
}

/** Returns the fix for a problem that has no page of its own, to unfold. @param {string} of */
function settle(of) {
  const mended = mend(codeOf(of));
  return mended ? h("details", {}, h("summary", {}, "How to fix it"), mended) : help(of);
}

/**
 * Returns the address conflicts that this cluster lost: proxies of other clusters get the other cluster's pods.
 * @param {any} cluster @returns {any[]}
 */
const yielded = (cluster) => (cluster.sameAddresses ?? []).filter((/** @type {any} */ same) => same.holder !== cluster.id);

/**
 * Returns the problems of the mesh config, rollouts, the policy, certificates, objects, and sources other than clusters.
 * @param {any} summary @param {any} rollout
 * @returns {Trouble[]}
 */
function settings(summary, rollout) {
  /** @type {import("./states.js").Look} */
  const bad = { tone: "bad", icon: "bad", rank: 6 };
  const { problems = [], held, holdLost } = summary.mesh ?? {};
  const certificate = summary.certificates?.problem;
  const policy = summary.policy?.problem;
  /** @type {any[]} */
  const objects = summary.objects?.first ?? [];
  /** @type {any[]} */
  const sources = summary.sources ?? [];
  /** @type {any[]} */
  const others = summary.problems ?? [];
  return [
    ...others.map((one) => ({ rank: 6, look: bad, title: one.code.startsWith("STR08") ? "Replicas" : "Proxies", href: null, text: `${one.code}: ${one.text}` })),
    ...problems.map((/** @type {any} */ one) => ({ rank: 6, look: bad, title: "Mesh config", href: null, text: `${one.code}: ${one.text}` })),
    ...(holdLost ? [{ rank: 6, look: bad, title: "Configuration", href: null, text: `STR1071: ${holdLost}` }] : []),
    ...(held ? [heldTrouble(held)] : []),
    ...rolloutTroubles(rollout),
    ...(policy ? [{ rank: 6, look: bad, title: "Policy", href: null, text: `STR0601: ${policy}` }] : []),
    ...(certificate ? [{ rank: 6, look: bad, title: "Certificates", href: null, text: `${certificate.code}: ${certificate.message}` }] : []),
    ...objects.map((one) => ({
      rank: 6, look: bad, title: `${one.kind} ${one.namespace ? `${one.namespace}/` : ""}${one.name}`, href: null,
      text: `${one.code ? `${one.code}: ` : ""}${one.state === "partly" ? "partly active" : "refused"}${one.path ? `: ${one.path}` : ""}${one.text ? `: ${one.text}` : ""}`,
    })),
    ...sources.filter((one) => ["stale", "timeout"].includes(one.state) || (["restored", "syncing"].includes(one.state) && one.code)).map((one) => ({
      rank: 5, look: { tone: "doubtful", icon: "clock", rank: 5 }, title: `Source ${one.name}`, href: null, text: `${one.state}: ${one.reason ?? "it has not been read"}`,
    })),
  ];
}

/** Returns the error code for a network's entry, or null. @param {any} network @param {import("./states.js").Look & { word: string }} entry */
function entryCode(network, entry) {
  if (entry.rank === 0) return null;
  if (network.gateways.length > 0) return "STR0409";
  const codes = (network.pending ?? []).map((/** @type {any} */ one) => one.code ?? "STR0402");
  return codes.length === 0 ? "STR0401" : ["STR0432", "STR0405"].find((code) => codes.includes(code)) ?? codes[0];
}

/** @param {string} kind @param {string} name */
function missing(kind, name) {
  return h("div", {}, closer(), h("h2", {}, `No ${kind} ${name}`), h("p", {}, "It was removed, or never existed."));
}

const closer = () => h("a", { class: "closer", href: "#/map", "aria-label": "Close the details" }, icon("close"));

/** @param {any} cluster @param {Mesh} whole */
function clusterPanel(cluster, whole) {
  const codes = [codeOf(cluster.reason), ...Object.keys(keptBack(cluster) > 0 ? cluster.withheldBy : {}).filter(isTrouble),
    yielded(cluster).length > 0 ? "STR0414" : null, cluster.credential?.endsSoon === true ? "STR0316" : null];
  return h("div", {}, closer(), h("h2", {}, cluster.id), [...new Set(codes)].map((code) => mend(code, cluster.id)), facts(cluster),
    h("p", { class: "links" },
      h("a", { href: `#/clusters/${encodeURIComponent(cluster.id)}` }, "Details"),
      h("a", { href: `#/proxies?filter=${encodeURIComponent(`@${cluster.id}`)}` }, proxiesOf(cluster, whole))));
}

/** Lists what is known about a cluster, in the CLI's order and words. @param {any} cluster */
export function facts(cluster) {
  /** @type {[string, any][]} */
  const rows = [
    ["State", badge(clusterLook(cluster), cluster.state)],
    ["Reason", cluster.reason && h("span", {}, cluster.reason, help(cluster.reason))],
    ["Since", cluster.since && `${age(cluster.since)} ago`],
    ["Last contact", cluster.lastContact ? `${contactAge(cluster)} ago` : "never"],
    ["Next attempt", cluster.nextAttempt && cluster.nextAttempt],
    ["Network", text(cluster.network)],
    ["Trust domain", text(cluster.trustDomain)],
    ["Secret", text(cluster.secret)],
    ["Credential ends", cluster.credential?.expires && `${cluster.credential.expires}${cluster.credential.renewsItself ? `, renewed by the ${cluster.credential.kind === "relay" ? "relay" : "control plane"}` : ""}`],
    ["Services", number(cluster.services)],
    ["Endpoints", number(cluster.endpoints)],
    ["Withheld", cluster.withheld > 0 ? h("span", { class: "withheld" }, `${number(cluster.withheld)} ${Object.entries(cluster.withheldBy ?? {}).map(([code, count]) => `${code}: ${count}`).join(", ")}`) : "0"],
    ["Objects", number(cluster.objects)],
    ["Relists", number(cluster.relists)],
    ...(cluster.ignoredClaims ?? []).map((/** @type {any} */ claim) => ["Ignored claim", `${claim.claim}: ${text(claim.network)}`]),
    ...(cluster.sameAddresses ?? []).map((/** @type {any} */ same) =>
      ["Same addresses", `${plural(same.addresses, "address", "addresses")} (first ${same.first}) with ${same.cluster} in network ${text(same.network)}; proxies of other clusters receive the pods of ${same.holder}`]),
  ];
  return h("dl", { class: "facts-list" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** @param {Area} area */
function networkPanel(area) {
  return h("div", {}, closer(), h("h2", {}, titled(area.name)), mend(entryCode(area.row, area.entry)),
    h("dl", { class: "facts-list" },
      h("dt", {}, "Entry"), h("dd", {}, badge(area.entry, area.entry.word)),
      h("dt", {}, "Clusters"), h("dd", {}, number(area.clusters.length)),
      h("dt", {}, "Endpoints"), h("dd", {}, number(area.endpoints))),
    h("h3", {}, "Gateways"),
    area.row.gateways.length === 0 && !(area.row.pending ?? []).length && h("p", {}, "None, so other networks can't reach it. ",
      h("code", {}, "strait network join CONTEXT"), " creates one."),
    h("ul", { class: "ports" },
      area.row.gateways.map((/** @type {any} */ one) => h("li", {},
        h("strong", {}, icon(one.dead === true ? "bad" : "anchor"), socket(one)), one.dead === true && h("span", { class: "withheld" }, " dead"),
        h("p", {}, `${one.source}${one.cluster ? ` in ${one.cluster}` : ""}${one.hostname ? `, ${one.hostname}` : ""}${one.ttlSeconds ? `, ttl ${one.ttlSeconds}s` : ""}`))),
      (area.row.pending ?? []).map((/** @type {any} */ one) => h("li", {},
        h("strong", {}, icon("clock"), one.source), h("p", {}, one.reason)))),
    h("h3", {}, "Clusters"),
    h("ul", { class: "names" }, area.clusters.slice(0, 200).map((one) => h("li", {}, h("a", { href: clusterHref(one.id), class: clusterLook(one).tone }, icon(clusterLook(one).icon), one.id)))));
}

/** Draws the lanes between ports, whose positions are known only after the layout. */
export function drawLanes() {
  const sheet = document.querySelector("svg.lanes");
  const around = sheet?.parentElement;
  if (!sheet || !around) return;
  const frame = around.getBoundingClientRect();
  const middle = { x: frame.width / 2, y: frame.height / 2 };
  const row = new Set([...around.querySelectorAll(".land")].map((land) => Math.round(land.getBoundingClientRect().bottom))).size === 1;
  const column = [...around.querySelectorAll(".land")].every((land) => land.getBoundingClientRect().width > frame.width * 0.7);
  /** @type {Map<string, { x: number, y: number, out: { x: number, y: number }, area: Area }>} */
  const ports = new Map();
  for (const quay of around.querySelectorAll("[data-quay]")) {
    const land = quay.parentElement;
    const area = shown.areas.find((one) => one.name === quay.getAttribute("data-quay"));
    if (!land || !area || !(quay instanceof HTMLElement)) continue;
    const rect = land.getBoundingClientRect();
    const [left, top] = [rect.left - frame.left, rect.top - frame.top];
    const [dx, dy] = [middle.x - left - rect.width / 2, middle.y - top - rect.height / 2];
    const crowd = shown.areas.length > ALL_LANES;
    const sideways = column || crowd || (!(row && shown.areas.length > 2) && Math.abs(dx) > rect.width * 0.25);
    const out = crowd ? { x: 1, y: 0 } : sideways ? { x: column || dx > 0 ? 1 : -1, y: 0 } : { x: 0, y: dy >= -1 ? 1 : -1 };
    const at = {
      x: out.x > 0 ? rect.width : out.x < 0 ? 0 : rect.width / 2,
      y: out.y > 0 ? rect.height : out.y < 0 ? 0 : crowd ? 36 : Math.min(rect.height / 2, 150),
    };
    quay.style.left = `${at.x}px`;
    quay.style.top = `${at.y}px`;
    ports.set(area.name, { x: left + at.x, y: top + at.y, out, area });
  }
  const names = [...ports.keys()];
  const few = names.length <= ALL_LANES;
  /** @type {Element[]} */
  const lanes = [];
  names.forEach((a, i) => names.slice(i + 1).forEach((b) => {
    const chosen = shown.selected === a || shown.selected === b;
    if (!few && !chosen) return;
    const dimmed = few && shown.selected !== null && !chosen;
    const [p, q] = [ports.get(a), ports.get(b)];
    if (p && q) lanes.push(...lane(p, q, column, dimmed));
  }));
  sheet.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const picture = lanes.map((one) => `${one.getAttribute("class")} ${one.getAttribute("d")} ${one.getAttribute("stroke-width")} ${one.textContent}`).join();
    // Keep unchanged lanes, so that their animation continues.
  if (sheet.childElementCount !== lanes.length || picture !== drawn) sheet.replaceChildren(...lanes);
  drawn = picture;
}

/** Describes the traffic between two networks, or returns null. @param {Area} from @param {Area} to */
function laneTraffic(from, to) {
  const ids = (/** @type {Area} */ area) => area.clusters.map((one) => one.id);
  const one = traffic.between(shown.traffic, ids(from), ids(to));
  return one && one.rate > 0 ? `to ${titled(to.name)}: ${traffic.words(one)}` : null;
}

/**
 * Draws a lane between two ports. Each half shows whether the network at its end can be entered.
 * @param {{ x: number, y: number, out: { x: number, y: number }, area: Area }} p
 * @param {{ x: number, y: number, out: { x: number, y: number }, area: Area }} q
 * @param {boolean} column
 * @param {boolean} dimmed
 */
function lane(p, q, column, dimmed) {
  const far = Math.hypot(q.x - p.x, q.y - p.y);
    // Between networks next to each other the lane arches through the water.
  const arch = p.out.y === q.out.y && p.out.y !== 0;
  const reach = column || (p.out.x === 1 && q.out.x === 1) ? Math.min(26, 12 + far / 40) : arch ? 46 + far * 0.15 : Math.max(30, far * 0.42);
  const a = { x: p.x + p.out.x * reach, y: p.y + p.out.y * reach };
  const b = { x: q.x + q.out.x * reach, y: q.y + q.out.y * reach };
    // Split the curve in the middle (de Casteljau), so that each half can have its own look.
  const mid = (/** @type {{x: number, y: number}} */ u, /** @type {{x: number, y: number}} */ v) => ({ x: (u.x + v.x) / 2, y: (u.y + v.y) / 2 });
  const [ab, bc, cd] = [mid(p, a), mid(a, b), mid(b, q)];
  const [abc, bcd] = [mid(ab, bc), mid(bc, cd)];
  const m = mid(abc, bcd);
  const d = (/** @type {{x: number, y: number}[]} */ ...points) => {
    const [s, c, e, t] = points.map((one) => `${one.x.toFixed(1)} ${one.y.toFixed(1)}`);
    return `M${s}C${c} ${e} ${t}`;
  };
  const half = (/** @type {Area} */ area, /** @type {string} */ path) => {
    const wide = 1.6 + Math.min(4, Math.log10(1 + area.endpoints));
    const look = `lane ${area.entry.tone} ${dimmed ? "dimmed" : ""}`;
    return [svg("path", { class: look, d: path, "stroke-width": wide.toFixed(1) }),
      area.entry.rank === 0 && svg("path", { class: `flow ${dimmed ? "dimmed" : ""}`, d: path })].filter((one) => one !== false);
  };
  const [there, back] = [[p, q], [q, p]].map(([from, to]) => laneTraffic(from.area, to.area));
    // One line for each direction, at the middle of the lane.
  const labels = [there, back].filter((one) => one !== null).map((one, at) =>
    svg("text", { class: `lane-traffic ${dimmed ? "dimmed" : ""}`, x: m.x.toFixed(1), y: (m.y - 6 + at * 14).toFixed(1), "text-anchor": "middle" }, one));
  return [...half(p.area, d(m, abc, ab, p)), ...half(q.area, d(m, bcd, cd, q)), ...labels];
}
