// The list of services; and one service as a flow from clusters, through gateways, to the selected proxy.

import * as api from "./api.js";
import { h, icon, svg } from "./dom.js";
import { NONE, number, plural, proxyPlace, text } from "./format.js";
import { choices, explainPath, sent, why } from "./explain.js";
import { table } from "./table.js";
import * as traffic from "./traffic.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** @param {string} host */
const serviceHref = (host) => `#/services/${encodeURIComponent(host)}`;

/** @param {Context} context @returns {View} */
export function servicesPage({ place, redraw, go }) {
  const needs = ["/debug/services"];
  const all = api.get("/debug/services")?.value ?? [];
  const [host] = place.parts;
  if (host) return one(host, all.find((row) => row.hostname === host), place.query, redraw, go);
  const measured = traffic.measured();
  const of = (/** @type {any} */ row) => traffic.ofService(measured, row.hostname);
  const filter = place.query.get("filter") ?? "";
  const rows = all.filter((row) => `${row.hostname} ${row.clusters.join(" ")}`.toLowerCase().includes(filter.toLowerCase()));
  return {
    title: "Services", needs, command: ["strait", "service", "list"], lead: plural(all.length, "service"),
    body: () => [
      h("form", { class: "filters", role: "search", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        h("label", {}, h("span", {}, "Find"), h("input", { type: "search", name: "filter", value: filter, placeholder: "name, namespace or cluster", autocomplete: "off",
          oninput: (/** @type {any} */ event) => go(`#/services${event.target.value ? `?${new URLSearchParams({ filter: event.target.value })}` : ""}`) }))),
      table("services", [
        { header: "Service", cell: (row) => h("a", { href: serviceHref(row.hostname) }, row.hostname), key: (row) => row.hostname },
        { header: "Namespace", cell: (row) => text(row.namespace), key: (row) => row.namespace },
        { header: "Ports", cell: (row) => text(row.ports.map(portText)) },
        { header: "Clusters", cell: (row) => text(row.clusters), key: (row) => row.clusters.length },
        { header: "Conflicts", cell: (row) => row.conflicts.length ? h("span", { class: "doubtful" }, text(row.conflicts.map((/** @type {any} */ it) => it.field))) : NONE, key: (row) => row.conflicts.length },
        ...(measured ? [
          { header: "Requests", cell: (/** @type {any} */ row) => traffic.rate(of(row)), key: (/** @type {any} */ row) => of(row)?.rate ?? 0, number: true },
          { header: "Errors", cell: (/** @type {any} */ row) => traffic.errors(of(row)), key: (/** @type {any} */ row) => of(row)?.errors ?? 0, number: true },
          { header: "95th percentile", cell: (/** @type {any} */ row) => traffic.latency(of(row)), key: (/** @type {any} */ row) => of(row)?.p95 ?? 0, number: true },
        ] : []),
      ], rows, redraw, { empty: all.length ? "No service matches." : "No cluster has reported a service." }),
      measured && h("p", { class: "fine" }, measured.problem ?? `Traffic of the last ${measured.window}, from Prometheus, as the clients' proxies report it.`),
    ],
  };
}

/** @param {any} port */
const portText = (port) => `${port.port}/${port.protocol}`;

/**
 * @param {string} host @param {any} row @param {URLSearchParams} query @param {() => void} redraw
 * @param {(hash: string) => void} go
 * @returns {View}
 */
function one(host, row, query, redraw, go) {
  const proxies = api.get("/debug/proxies")?.value ?? [];
  const names = choices(proxies);
  const proxy = query.get("proxy") ?? names[0] ?? "";
  const port = query.get("port") ?? String(row?.ports[0]?.port ?? "");
  const answer = row && proxy ? api.get(explainPath(proxy, host, port)) : undefined;
  const measured = traffic.measured();
  const requests = traffic.ofService(measured, host);
  /** @param {string} name @param {string} value */
  const choose = (name, value) => go(`${serviceHref(host)}?${new URLSearchParams({ proxy, port, [name]: value })}`);
  return {
    title: host, needs: ["/debug/services", "/debug/proxies"],
    command: proxy ? ["strait", "explain", proxy, `${host}${port ? `:${port}` : ""}`] : ["strait", "service", "get", host],
    lead: row ? `${plural(row.clusters.length, "cluster")} ${row.clusters.length === 1 ? "has" : "have"} it` : null,
    body: () => row ? [
      h("form", { class: "filters", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        h("label", {}, h("span", {}, "As seen by"), h("select", { name: "proxy", onchange: (/** @type {any} */ event) => choose("proxy", event.target.value) },
          (names.includes(proxy) || !proxy ? names : [proxy, ...names]).slice(0, 1000).map((name) => h("option", { value: name, selected: name === proxy }, name)))),
        h("label", {}, h("span", {}, "Port"), h("select", { name: "port", onchange: (/** @type {any} */ event) => choose("port", event.target.value) },
          row.ports.map((/** @type {any} */ it) => h("option", { value: String(it.port), selected: String(it.port) === port }, portText(it)))))),
      !proxy && h("section", { class: "card notice" }, h("h2", {}, "No proxy is connected"), h("p", {}, "Once one is connected, this page shows how it reaches each cluster.")),
      measured && h("p", {}, measured.problem ?? `Last ${measured.window}: ${requests ? traffic.words(requests) : "no requests"}`),
      proxy && !answer && h("p", { class: "fine" }, "Asking the control plane"),
      answer?.error && h("section", { class: "card notice", role: "alert" }, h("h2", {}, icon("warn"), "No flow"), h("p", {}, answer.error)),
      answer?.value && flow(answer.value, proxies.find((/** @type {any} */ it) => proxyPlace(it) === proxy), proxy),
      answer?.value && table("ways", [
        { header: "Cluster", cell: (it) => h("a", { href: `#/map/cluster/${encodeURIComponent(it.cluster)}` }, it.cluster || "entries") },
        { header: "Network", cell: (it) => text(it.network) },
        { header: "Ready", cell: (it) => `${it.ready}/${it.total}`, number: true },
        { header: "Sent", cell: sent },
        { header: "Why", cell: (it) => why(it, typeof answer.value.found === "string"), wide: true },
      ], answer.value.clusters, redraw, { caption: "The flow as a table" }),
      h("p", { class: "links" }, h("a", { href: `#/explain?${new URLSearchParams({ proxy, service: host, port })}` }, "Explain each endpoint"), h("a", { href: "#/services" }, "All services")),
      h("section", { class: "card" }, h("h2", {}, "Merged from all its clusters"), h("dl", { class: "facts-list" }, [
        ["Resolution", row.resolution], ["Ports", text(row.ports.map((/** @type {any} */ it) => `${it.name} ${portText(it)}`).join(", "))], ["Clusters", text(row.clusters.join(", "))],
        ["Addresses", text(Object.entries(row.clusterVIPs).map(([cluster, vips]) => `${cluster}: ${/** @type {any} */ (vips).join(", ")}`).join("; "))],
        ["Accounts", text(row.serviceAccounts.join(", "))],
        ["Conflicts", text(row.conflicts.map((/** @type {any} */ it) => `${it.field}: ${it.winner || "entries"} decides, ${it.losers.join(", ")} differ`).join("; "))],
      ].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
    ] : [h("section", { class: "card notice" }, h("h2", {}, "Service not found"), h("p", {}, `No cluster has a service ${host}.`), h("p", {}, h("a", { href: "#/services" }, "All services")))],
  };
}

/** Bands of the drawn flow. @type {{ from: string, to: string, count: number, tone: string }[]} */
let bands = [];

/** @param {any} answer @param {any} proxy @param {string} name */
function flow(answer, proxy, name) {
  /** @type {Map<string, { title: string, facts: string, sent: number, tone: string, sign: string }>} */
  const ways = new Map();
  bands = [];
  const total = answer.clusters.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.sent, 0);
  /** @type {any[]} */
  const stubs = [];
  for (const row of answer.clusters) {
    const from = `from-${row.cluster}-${row.network}`;
    if (row.sent > 0) {
      const key = row.via === "direct" ? "way-direct" : `way-${row.via}`;
      const way = ways.get(key) ?? { title: row.via === "direct" ? "directly" : row.via, facts: row.via === "direct" ? `network ${text(row.network)}` : `gateway of ${text(row.network)}`, sent: 0, tone: "good", sign: row.via === "direct" ? "right" : "anchor" };
      way.sent += row.sent;
      ways.set(key, way);
      bands.push({ from, to: key, count: row.sent, tone: "good" });
    }
    if (row.ready > row.sent) {
      const key = `stub-${row.cluster}-${row.network}`;
      stubs.push({ key, row, count: row.ready - row.sent });
      bands.push({ from, to: key, count: row.ready - row.sent, tone: "bad" });
    }
  }
  for (const [key, way] of ways) bands.push({ from: key, to: "the-proxy", count: way.sent, tone: "good" });
  return h("section", { class: "flow-picture", "aria-label": "From clusters to the proxy; the table below has the same data" },
    svg("svg", { class: "bands", "aria-hidden": "true", "data-drawn": "" }),
    h("div", { class: "stage" }, h("h2", {}, "Clusters"), answer.clusters.map((/** @type {any} */ row) =>
      h("div", { class: `node ${row.ready < row.total ? "doubtful" : ""}`, "data-node": `from-${row.cluster}-${row.network}`, "data-key": `from-${row.cluster}-${row.network}` },
        h("strong", {}, row.cluster || "entries"), h("span", {}, `${row.ready}/${row.total} ready`), h("span", { class: "fine" }, `network ${text(row.network)}`)))),
    h("div", { class: "stage" }, h("h2", {}, "Ways"),
      [...ways].map(([key, way]) => h("div", { class: "node good", "data-node": key, "data-key": key }, h("strong", {}, icon(way.sign), way.title), h("span", { class: "fine" }, way.facts), h("span", {}, plural(way.sent, "endpoint")))),
      stubs.map(({ key, row, count }) => h("div", { class: "node stub", "data-node": key, "data-key": key }, h("strong", {}, icon("bad"), `${number(count)} withheld`), h("span", {}, row.reason ?? "", row.code ? ` ${row.code}` : "")))),
    h("div", { class: "stage" }, h("h2", {}, "Proxy"),
      h("div", { class: total > 0 ? "node good" : "node bad", "data-node": "the-proxy" }, h("strong", {}, name), h("span", { class: "fine" }, proxy ? `network ${text(proxy.network)}` : ""), h("span", {}, `${plural(total, "endpoint")} in all`))));
}

/** Draws the bands between nodes, whose positions are known only after the layout. */
export function drawFlow() {
  const sheet = document.querySelector("svg.bands");
  const around = sheet?.parentElement;
  if (!sheet || !around) return;
  const frame = around.getBoundingClientRect();
  const narrow = frame.width < 560;
  const all = new Map([...around.querySelectorAll("[data-node]")].map((one) => [one.getAttribute("data-node") ?? "", one.getBoundingClientRect()]));
  const most = Math.max(1, ...bands.map((band) => band.count));
  const width = (/** @type {number} */ count) => 3 + 19 * Math.sqrt(count / most);
  /** @type {Map<string, number>} */
  const sum = new Map();
  for (const band of bands) {
    for (const end of [`out ${band.from}`, `in ${band.to}`]) sum.set(end, (sum.get(end) ?? 0) + width(band.count));
  }
  /** @type {Map<string, number>} */
  const used = new Map();
  const place = (/** @type {string} */ end, /** @type {number} */ wide) => {
    const before = used.get(end) ?? 0;
    used.set(end, before + wide);
    return before + wide / 2 - (sum.get(end) ?? 0) / 2;
  };
  const paths = bands.flatMap((band) => {
    const [a, b] = [all.get(band.from), all.get(band.to)];
    if (!a || !b) return [];
    const wide = width(band.count);
    const [out, into] = [place(`out ${band.from}`, wide), place(`in ${band.to}`, wide)];
    let d;
    if (narrow) {
      const [x1, y1, x2, y2] = [a.left + a.width / 2 + out, a.bottom, b.left + b.width / 2 + into, b.top].map((v, i) => v - (i % 2 ? frame.top : frame.left));
      const y = (y1 + y2) / 2;
      d = `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x1.toFixed(1)} ${y.toFixed(1)} ${x2.toFixed(1)} ${y.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
    } else {
      const [x1, y1, x2, y2] = [a.right, a.top + a.height / 2 + out, b.left, b.top + b.height / 2 + into].map((v, i) => v - (i % 2 ? frame.top : frame.left));
      const x = (x1 + x2) / 2;
      d = `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x.toFixed(1)} ${y1.toFixed(1)} ${x.toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
    }
    return [svg("path", { class: `band ${band.tone}`, d, "stroke-width": wide.toFixed(1) })];
  });
  sheet.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  sheet.replaceChildren(...paths);
}
