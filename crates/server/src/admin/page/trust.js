// Expiry on a time axis, of certificates and of the tokens for the clusters' API servers; and trust domains with their clusters.

import * as api from "./api.js";
import { h, icon, svg } from "./dom.js";
import { age, now, plural, span, text, until } from "./format.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

/** Maximum number of bars drawn, the earliest expiry first. The table lists all. */
const BARS = 60;
const DAY = 86_400_000;

/** Descriptions of the steps of a root. @type {Record<string, string>} */
const STEPS = {
  signs: "signs", distribute: "is being distributed", sign: "may sign", wait: "no longer signs", kept: "kept, but in no file", withdraw: "may go",
};

/** @param {Context} context @returns {View} */
export function trustPage({ redraw }) {
  const needs = ["/debug/clusters", "/debug/certificates"];
  /** @type {Partial<import("./admin-api.js").CertificateStatus>} */
  const own = api.get("/debug/certificates")?.value ?? {};
  const clusters = api.get("/debug/clusters")?.value ?? [];
  const tokens = clusters.flatMap((one) => one.credential?.expires ? [{ ...one.credential, name: one.id, at: Date.parse(one.credential.expires) }] : []).sort((a, b) => a.at - b.at);
  const soon = tokens.filter((one) => one.endsSoon).length;
  const certificates = [{ name: "Serving certificate", one: own.serving }, { name: "Signing certificate", one: own.authority }]
    .flatMap(({ name, one }) => one ? [{ name, expires: one.expires, at: Date.parse(one.expires), endsSoon: one.endsSoon, renewsItself: name === "Serving certificate" && Boolean(own.authority) }] : []);
  const roots = own.rotation?.roots ?? [];
  /** @type {Map<string, string[]>} */
  const domains = new Map();
  for (const one of clusters) if (one.trustDomain) domains.set(one.trustDomain, [...(domains.get(one.trustDomain) ?? []), one.id]);
  return {
    title: "Trust", needs, command: ["strait", "cluster", "list", "-o", "wide"],
    lead: tokens.length ? badge(soon ? { tone: "bad", icon: "clock", rank: 1 } : { tone: "good", icon: "ok", rank: 0 }, soon ? `${plural(soon, "token ends", "tokens end")} soon` : `${plural(tokens.length, "token")}, none ends soon`) : null,
    body: () => [
      own.problem != null && h("section", { class: "card bad", role: "note" }, h("h2", {}, icon("bad"), "A newer certificate or key is not in use"), h("p", {}, `${own.problem.code}: ${own.problem.message}`),
        h("p", { class: "fine" }, `for ${age(own.problem.since)}; help: `, h("code", {}, `strait help ${own.problem.code}`))),
      h("h2", {}, "Certificates of the control plane"),
      axis("When certificates end; the table below has the same data", certificates),
      table("certificates", [
        { header: "Certificate", cell: (one) => one.name },
        { header: "Ends in", cell: (one) => one.endsSoon ? h("span", { class: "withheld" }, until(one.expires)) : until(one.expires) },
        { header: "Ends at", cell: (one) => one.expires },
        { header: "Renewal", cell: (one) => one.renewsItself ? "by the control plane" : "by its issuer" },
      ], certificates, redraw),
      roots.length > 0 && h("h2", {}, "Roots of the CA"),
      roots.length > 0 && table("roots", [
        { header: "Root", cell: (one) => h("code", {}, one.fingerprint.slice(0, 12)) },
        { header: "Subject", cell: (one) => one.subject },
        { header: "Step", cell: (one) => STEPS[one.step] ?? one.step },
        { header: "Last certificate ends in", cell: (one) => one.lastCertificateEnds ? `${one.assumed ? "at most " : ""}${until(one.lastCertificateEnds)}` : "none" },
        { header: "May lack it", cell: (one) => one.lacks.map((/** @type {any} */ lack) => h("p", {}, `${lack.who}: ${lack.fact}`)) },
        { header: "Ends in", cell: (one) => until(one.ends) },
      ], roots, redraw),
      own.rotation?.phase != null && h("p", { class: "fine" }, `Phase ${own.rotation.number} of 4, ${own.rotation.phase}. Next: ${own.rotation.next}. `, h("code", {}, "strait certs status")),
      h("h2", {}, "Tokens for the clusters' API servers"),
      tokens.length === 0
        ? h("section", { class: "card notice" }, h("h2", {}, "No token expires"), h("p", {}, "The control plane reads clusters with client certificates, or with tokens that don't expire. ", h("code", {}, "strait cluster rotate NAME"), " creates a token that expires."))
        : axis("When tokens end; the table below has the same data", tokens.slice(0, BARS)),
      tokens.length > BARS && h("p", { class: "fine" }, `and ${tokens.length - BARS} that end later`),
      tokens.length > 0 && table("tokens", [
        { header: "Cluster", cell: (one) => h("a", { href: `#/clusters/${encodeURIComponent(one.name)}` }, one.name), key: (one) => one.name },
        { header: "Ends in", cell: (one) => one.endsSoon ? h("span", { class: "withheld" }, until(one.expires)) : until(one.expires), key: (one) => one.at },
        { header: "Ends at", cell: (one) => one.expires },
        { header: "Renewal", cell: (one) => one.renewsItself ? "by the control plane" : h("code", {}, `strait cluster rotate ${one.name}`) },
      ], tokens, redraw),
      h("h2", {}, "Trust domains"),
      table("trust domains", [
        { header: "Trust domain", cell: ([domain]) => text(domain) },
        { header: "Clusters", cell: ([, of]) => `${of.slice(0, 40).join(", ")}${of.length > 40 ? ` and ${of.length - 40} more` : ""}` },
      ], [...domains].sort(), redraw, { empty: "No cluster has reported its trust domain." }),
      h("p", { class: "fine" }, "Whether the workloads of all clusters trust the same roots: ", h("code", {}, "strait check --secrets")),
    ],
  };
}

/** @param {string} label @param {any[]} tokens */
function axis(label, tokens) {
  const start = now();
  const end = Math.max(start + DAY, ...tokens.map((one) => one.at));
  const least = end - start;
  const steps = [3_600_000, 6 * 3_600_000, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY, 730 * DAY, 3650 * DAY];
  const step = steps.find((size) => least / size <= 6) ?? least / 5;
    // Round up to a whole number of steps, each as wide as its label.
  const long = Math.ceil(least / step) * step;
  const marks = Array.from({ length: Math.round(long / step) }, (_, at) => at * step);
  const x = (/** @type {number} */ at) => (Math.max(0, at) / long) * 100;
  return h("section", { class: "card axis", "aria-label": label },
    tokens.map((one) => h("div", { class: "bar-row", "data-key": `bar-${one.name}` },
      h("span", { class: "bar-name" }, one.name),
      svg("svg", { class: "bar-line", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        marks.map((at) => svg("path", { class: "mark", d: `M${x(at).toFixed(2)} 0v10` })),
        svg("rect", { class: one.endsSoon ? "bad" : one.renewsItself ? "info" : "good", x: 0, y: 2, width: Math.max(0.6, x(one.at - start)).toFixed(2), height: 6, rx: 1 })),
      h("span", { class: one.endsSoon ? "bar-end withheld" : "bar-end" }, until(one.expires)))),
    h("div", { class: "bar-row scale", "aria-hidden": "true" }, h("span", {}), h("span", { class: "scale-marks" }, marks.map((at) => h("span", {}, at === 0 ? "now" : span(at / 1000)))), h("span", {})));
}
