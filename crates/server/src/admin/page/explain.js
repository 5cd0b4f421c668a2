// Explains why a proxy has or lacks the endpoints of a service: for each endpoint, the decisions up to the first "no".

import * as api from "./api.js";
import { h, icon } from "./dom.js";
import { NONE, number, plural, proxyName, proxyPlace, text } from "./format.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** Number of endpoints whose decisions are drawn at first. */
const LADDERS = 24;
let drawn = { of: "", count: LADDERS };

/** @type {Record<string, import("./states.js").Look>} */
const VERDICTS = {
  direct: { tone: "good", icon: "ok", rank: 0 },
  gateway: { tone: "good", icon: "anchor", rank: 1 },
  withheld: { tone: "bad", icon: "bad", rank: 2 },
};

/** @param {string} proxy @param {string} service @param {string} port @param {string} [address] */
export function explainPath(proxy, service, port, address) {
  const query = new URLSearchParams({ proxy, hostname: service });
  if (port) query.set("port", port);
  if (address) query.set("address", address);
  return `/debug/explain?${query}`;
}

/** Formats the reason in the words of `strait explain`. @param {any} row @param {boolean} byItself */
export function why(row, byItself) {
  const parts = [];
  if (row.reason) {
    parts.push([`${row.reason} ${row.code ?? ""}`.trim(), ...(row.alsoWithheld ?? []).map((/** @type {any} */ one) => `${one.reason} ${one.code}`)].join("; "));
  } else if (row.via === "direct") parts.push(byItself ? "resolved by the proxy itself" : "same network");
  else if (row.via) parts.push("through the gateway of its network");
  if (typeof row.priority === "number") parts.push(`priority ${row.priority}`);
  return parts.join("; ") || NONE;
}

/** @param {any} row */
export const sent = (row) => (row.via ? `${row.sent} ${row.via === "direct" ? "direct" : `via ${row.via}`}` : "0");

/** Returns the proxies to choose from, each name once. @param {import("./admin-api.js").Proxy[]} proxies */
export const choices = (proxies) => [...new Set(proxies.map(proxyPlace))].sort();

/** @param {Context} context @returns {View} */
export function explainPage({ place, redraw, go }) {
  const parameter = (/** @type {string} */ name) => place.query.get(name) ?? "";
  const [proxy, service, port, address] = ["proxy", "service", "port", "address"].map(parameter);
  const proxies = api.get("/debug/proxies")?.value ?? [];
  const services = api.get("/debug/services")?.value ?? [];
  const complete = proxy !== "" && service !== "";
  const path = complete ? explainPath(proxy, service, port, address) : null;
  const answer = path ? api.get(path) : undefined;
  const command = complete
    ? ["strait", "explain", proxy, `${service}${port ? `:${port}` : ""}`, ...(address ? ["--address", address] : [])]
    : ["strait", "explain", "PROXY", "SERVICE"];
  return {
    title: "Explain", command, needs: ["/debug/proxies", "/debug/services"],
    lead: "Why a proxy has, or has not, the endpoints of a service.",
    body: () => [
      form({ proxy, service, port, address }, proxies, services, go),
      !complete && examples(proxies, services),
      complete && !answer && h("p", { class: "fine" }, "Asking the control plane"),
      answer?.error && h("section", { class: "card notice", role: "alert" }, h("h2", {}, icon("warn"), "No explanation"), h("p", {}, answer.error),
        h("p", { class: "fine" }, "help: ", h("code", {}, "strait proxy list"), ", ", h("code", {}, "strait service list"))),
      ...(answer?.value ? explanation(answer.value, proxies, proxy, address, path ?? "", redraw) : []),
    ],
  };
}

/**
 * @param {Record<string, string>} given
 * @param {import("./admin-api.js").Proxy[]} proxies @param {import("./admin-api.js").Service[]} services
 * @param {(hash: string) => void} go
 */
function form(given, proxies, services, go) {
  const lists = { proxy: choices(proxies).slice(0, 500), service: services.map((one) => one.hostname).slice(0, 1000) };
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const data = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    const query = new URLSearchParams();
    for (const name of ["proxy", "service", "port", "address"]) {
      const value = String(data.get(name) ?? "").trim();
      if (value) query.set(name, value);
    }
        // Like the CLI, accept "service:port".
    const [host, at] = (query.get("service") ?? "").split(":");
    if (at && !query.get("port")) {
      query.set("service", host);
      query.set("port", at);
    }
    go(`#/explain?${query}`);
  };
  /** @param {string} name @param {string} label @param {string} hint @param {boolean} needed */
  const field = (name, label, hint, needed) => h("label", {}, h("span", {}, label),
    h("input", { name, value: given[name], placeholder: hint, required: needed, autocomplete: "off", spellcheck: "false",
      list: name in lists ? `known-${name}` : null, inputmode: name === "port" ? "numeric" : null }));
  return h("form", { class: "filters ask", onsubmit: submit },
    field("proxy", "Proxy", "name.namespace@cluster", true), field("service", "Service", "name.namespace", true),
    field("port", "Port", "first", false), field("address", "Address", "all", false),
    h("button", { type: "submit" }, "Explain"),
    Object.entries(lists).map(([name, values]) => h("datalist", { id: `known-${name}` }, values.map((value) => h("option", { value })))));
}

/** Returns links to a few explanations, as examples. @param {import("./admin-api.js").Proxy[]} proxies @param {import("./admin-api.js").Service[]} services */
function examples(proxies, services) {
  const pairs = choices(proxies).slice(0, 3).flatMap((proxy) => services.slice(0, 3).map((one) => [proxy, one.hostname]));
  if (pairs.length === 0) return h("section", { class: "card notice" }, h("h2", {}, "Nothing to explain"), h("p", {}, "No proxy is connected, or there is no service yet."));
  return h("section", { class: "card" }, h("h2", {}, "Examples"),
    h("ul", { class: "names tall" }, pairs.map(([proxy, service]) => h("li", {}, h("a", { href: `#/explain?${new URLSearchParams({ proxy, service })}` }, `${proxy} → ${service}`)))));
}

/**
 * @param {any} answer @param {import("./admin-api.js").Proxy[]} proxies @param {string} proxyKey @param {string} address @param {string} path
 * @param {() => void} redraw
 */
function explanation(answer, proxies, proxyKey, address, path, redraw) {
  const of = proxies.find((one) => one.id === answer.proxy && (one.key === proxyKey || !proxyKey.includes("@") || proxyPlace(one) === proxyKey)) ?? proxies.find((one) => one.id === answer.proxy);
  const found = typeof answer.found === "string" ? answer.found : null;
  const endpoints = [...answer.endpoints].sort((a, b) => (VERDICTS[b.verdict]?.rank ?? 9) - (VERDICTS[a.verdict]?.rank ?? 9));
  if (drawn.of !== path) drawn = { of: path, count: LADDERS };
  const codes = [...new Set(answer.clusters.flatMap((/** @type {any} */ row) => [row.code, ...(row.alsoWithheld ?? []).map((/** @type {any} */ one) => one.code)]).filter(Boolean))];
  return [
    h("h2", { class: "subject" }, `${answer.hostname}:${answer.port} as seen by ${of ? `${proxyName(of)} (${of.cluster}, network ${text(of.network)})` : answer.proxy}`),
    found && h("p", {}, `Not sent by the control plane: ${found}`),
    table("clusters of the service", [
      { header: "Cluster", cell: (row) => h("a", { href: `#/map/cluster/${encodeURIComponent(row.cluster)}` }, row.cluster || "entries") },
      { header: "Network", cell: (row) => text(row.network) },
      { header: "Ready", cell: (row) => `${row.ready}/${row.total}`, number: true },
      { header: "Sent", cell: (row) => h("span", { class: row.sent < row.ready ? "withheld" : "good" }, sent(row)) },
      { header: "Why", cell: (row) => why(row, found !== null), wide: true },
    ], answer.clusters, redraw, { empty: found ? "No cluster has it." : "No cluster has an endpoint for this port." }),
    codes.length > 0 && h("p", { class: "fine" }, codes.map((code) => h("span", { class: "help" }, "help: ", h("code", {}, `strait help ${code}`)))),
    ...(answer.notes ?? []).map((/** @type {string} */ note) => h("p", {}, `Note: ${note}`)),
    address && endpoints.length === 0 && h("p", {}, `No cluster has an endpoint ${address} for this port.`),
    endpoints.length > 0 && h("h2", {}, `${plural(endpoints.length, "endpoint")}, decision by decision`),
    h("div", { class: "ladders" }, endpoints.slice(0, drawn.count).map(ladder)),
    endpoints.length > drawn.count && h("p", { class: "more" }, `${number(drawn.count)} of ${number(endpoints.length)} `,
      h("button", { type: "button", class: "quiet", onclick: () => {
        drawn = { of: path, count: drawn.count + LADDERS * 4 };
        redraw();
      } }, "Show more")),
  ];
}

/** @param {any} endpoint */
function ladder(endpoint) {
  const look = VERDICTS[endpoint.verdict] ?? VERDICTS.withheld;
  const via = (endpoint.via ?? []).join(", ");
  return h("section", { class: `card ladder ${look.tone}`, "data-key": `${endpoint.cluster}-${endpoint.network}-${endpoint.address}-${endpoint.port}` },
    h("h3", {}, h("span", { class: "mono" }, `${endpoint.address}:${endpoint.port}`), badge(look, via ? `${endpoint.verdict} ${via}` : endpoint.verdict)),
    h("p", { class: "fine" }, `in ${endpoint.cluster || "entries"}, network ${text(endpoint.network)}`),
    h("ol", { class: "steps" }, endpoint.steps.map((/** @type {any} */ step) =>
      h("li", { class: step.ok ? "good" : "bad" }, h("span", { class: "sign" }, icon(step.ok ? "ok" : "bad")),
        h("span", { class: "step" }, h("strong", {}, step.step), h("span", { class: "unseen" }, step.ok ? " yes: " : " no: "), h("span", { class: "detail" }, step.detail))))));
}
