// A rollout: its current step, what it waits for, which proxies refused the configuration, and why it was stopped; and the
// configuration that is held instead.

import * as api from "./api.js";
import { h, icon, svg } from "./dom.js";
import { age, number, plural, span, text, until } from "./format.js";
import { mend } from "./mend.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View */

export const ROLLOUT_HREF = "#/timeline/rollout";

/** Shortens a configuration's id to as many digits as the CLI shows. @param {unknown} id */
const digits = (id) => text(id).slice(0, 12);

/** Returns the running rollout and the last stopped one, or `undefined` before the answer arrives. @returns {any} */
export const rolloutState = () => api.get("/debug/rollout")?.value;

/** Formats the size of the share. @param {any} running */
const shareWords = (running) => `${number(running.proxies)} of ${plural(running.connected, "proxy", "proxies")}`;

/** Returns the rollout's chip for the head of the map, or null. @param {any} state */
export function rolloutChip(state) {
  const running = state?.running;
  if (!running) return null;
  const words = running.step === null ? "rollout starts" : `rollout at ${running.percent}%: ${shareWords(running)}${running.refused ? `, ${number(running.refused)} refused it` : ""}`;
  return h("a", { class: "chip", href: ROLLOUT_HREF }, badge({ tone: running.refused ? "bad" : "info", icon: running.refused ? "bad" : "sync", rank: 1 }, words));
}

/** Returns the problems of rollouts, for the list next to the map. @param {any} state */
export function rolloutTroubles(state) {
  const lost = state?.lost;
  /** @type {import("./states.js").Look} */
  const look = { tone: "bad", icon: "bad", rank: 6 };
  return lost ? [{ rank: 6, look, title: "Configuration", href: null, text: `STR1092: all proxies receive the current objects: ${lost}` }] : [];
}

/**
 * Returns the held configuration as a row of the list next to the map. As in `strait check`, it is a problem if a rollout
 * was stopped.
 * @param {any} held
 */
export function heldTrouble(held) {
  const stopped = held.byRollout === true;
  const rank = stopped ? 6 : 5;
  /** @type {import("./states.js").Look} */
  const look = { tone: stopped ? "bad" : "doubtful", icon: "lock", rank };
  return {
    rank, look, title: "Configuration", href: stopped ? ROLLOUT_HREF : null,
    text: `${stopped ? "STR1091" : "STR1070"}: held for ${age(held.since)}${held.by ? ` by ${held.by}` : ""}${held.reason ? `: ${held.reason}` : ""}; ${plural(held.waiting, "change waits", "changes wait")}`,
  };
}

/** Returns the timeline's cards for the running rollout and for the held configuration. @param {Context} context */
export function rolloutCards(context) {
  const state = rolloutState();
  const held = api.get("/debug/mesh")?.value?.held;
  return [
    state?.running && h("section", { class: "card rollout" },
      h("h2", {}, h("a", { href: ROLLOUT_HREF }, title(state.running))), picture(state.running), runningFacts(state.running)),
    held && h("section", { class: `card rollout ${held.byRollout ? "bad" : "doubtful"}` },
      h("h2", {}, icon("lock"), held.byRollout ? h("a", { href: ROLLOUT_HREF }, "A rollout was stopped") : "The configuration is held"),
      heldFacts(held), h("p", {}, context.command(["strait", "history", "release"]))),
  ];
}

/** Page of the rollout alone. @param {Context} context @returns {View} */
export function rolloutPage(context) {
  const needs = ["/debug/rollout", "/debug/mesh"];
  const state = rolloutState() ?? {};
  const { running, plan } = state;
  const held = api.get("/debug/mesh")?.value?.held;
  if (held) api.get("/debug/codes");
  return {
    title: "Rollout", needs, command: ["strait", "history", "rollout"],
    lead: running ? badge({ tone: "info", icon: "sync", rank: 1 }, title(running))
      : held?.byRollout ? badge({ tone: "bad", icon: "lock", rank: 2 }, "stopped and held") : "No rollout is running.",
    body: () => [
      h("p", { class: "links" }, h("a", { href: "#/timeline" }, "Timeline"), h("a", { href: "#/map" }, "Map")),
      running && h("section", { class: "card rollout" }, h("h2", {}, title(running)), picture(running), runningFacts(running),
        h("p", { class: "links" }, context.command(["strait", "history", "rollout", "--promote"]), context.command(["strait", "history", "rollout", "--abort"])),
        h("p", { class: "fine" }, "The first command rolls the change out to all proxies now. The second one stops the rollout: all proxies get the previous configuration, which is then held.")),
      held && h("section", { class: `card rollout ${held.byRollout ? "bad" : "doubtful"}` },
        h("h2", {}, icon("lock"), held.byRollout ? "A rollout was stopped" : "The configuration is held"), heldFacts(held),
        mend(held.byRollout ? "STR1091" : "STR1070"), h("p", {}, context.command(["strait", "history", "release"]))),
      state.lost && h("section", { class: "card bad" }, h("h2", {}, icon("bad"), "The configuration from before the restart is not known"), h("p", {}, `STR1092: ${state.lost}`)),
      h("section", { class: "card" }, h("h2", {}, "How changes are rolled out"), h("p", {}, plan ? planWords(plan) : "The policy has no rollout: changes are sent to all proxies at once."),
        h("p", { class: "fine" }, `Since the control plane started, ${number(state.completedTotal)} reached all proxies and ${number(state.stoppedTotal)} were stopped.`)),
      running && table("steps", STEPS, steps(running), context.redraw, { caption: "Steps" }),
      running && running.step !== null && table("proxies of the share", PROXIES, proxies(running), context.redraw, { caption: "Proxies of the share", empty: "No connected proxy is in this share." }),
      running && running.proxies > running.share.length && h("p", { class: "fine" }, `${number(running.share.length)} of ${number(running.proxies)} are listed.`),
    ],
  };
}

/** @param {any} running */
function title(running) {
  return running.step === null ? "A rollout is about to start: no proxy has the change yet" : `A change is rolled out to ${running.percent}% of proxies`;
}

/** Lists the facts that have a value. @param {[string, any][]} rows */
const facts = (rows) => h("dl", { class: "facts-list" }, rows.filter(([, value]) => value !== null && value !== false && value !== undefined).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** @param {any} running */
function runningFacts(running) {
  const given = running.step !== null;
  const { steps: shares, stopAt } = running.plan;
  const next = shares[running.step ?? 0];
  return facts([
    ["Configuration", h("code", {}, digits(running.configuration))],
    ["Other proxies have", h("code", {}, digits(running.settled))],
    ["Started", `${age(running.begun)} ago`],
    ["Step", given ? `${running.step} of ${shares.length}, for ${age(running.stepSince)}` : `none of ${shares.length} yet`],
    ["Rolled out to", given && shareWords(running)],
    ["Refused by", given && h("span", { class: running.refused ? "withheld" : null }, `${number(running.refused)}; the rollout stops at ${number(stopAt.refused)}`)],
    ["Waits for", given ? `the next step: to ${next}% in ${until(running.nextStepAt)}` : `the check of lost endpoints: then to ${next}%`],
    ["After a restart", running.durable === true ? null : "it is sent to all proxies, because the previous configuration can't be stored"],
    ...(running.refusals ?? []).slice(0, 3).map((/** @type {any} */ one) => ["Refusal", h("span", { class: "withheld" }, `${proxyOf(one.proxy)}: ${one.error}`)]),
  ]);
}

/** @param {any} held */
function heldFacts(held) {
  return facts([
    ["Configuration", h("code", {}, digits(held.configuration))],
    ["Held for", age(held.since)],
    ["By", held.by || null],
    ["Why", held.reason || null],
    ["Waiting", plural(held.waiting, "change")],
    ["Access policies", held.withAccess ? "are held as well" : "are not held"],
    ["After a restart", held.durable === true ? null : "it is lost, because there is no state directory"],
  ]);
}

/** Formats the plan in the CLI's words. @param {any} plan */
const planWords = (plan) => `Changes are rolled out to ${plan.steps.map((/** @type {number} */ step) => `${step}%`).join(", ")} of proxies, one step every ${plan.everySeconds}s; `
  + `stopped if the number of refusing proxies reaches ${plan.stopAt.refused}, or more than ${plan.stopAt.lostEndpoints}% of a service's endpoints are lost.`;

/** Draws all proxies as a bar, with the share that has the new configuration, and the steps. @param {any} running */
function picture(running) {
  return svg("svg", { class: "share", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "others", x: 0, y: 0, width: 100, height: 8 }),
    svg("rect", { class: running.refused ? "bad" : "info", x: 0, y: 0, width: running.percent, height: 8 }),
    running.plan.steps.slice(0, -1).map((/** @type {number} */ share) => svg("line", { class: "mark", x1: share, y1: 0, x2: share, y2: 8 })));
}

/** @typedef {{ at: number, percent: number, state: string }} Step */

/** @type {import("./table.js").Column[]} */
const STEPS = [
  { header: "Step", cell: (/** @type {Step} */ row) => String(row.at) },
  { header: "Share", cell: (/** @type {Step} */ row) => `${row.percent}%` },
  { header: "State", cell: (/** @type {Step} */ row) => row.state, wide: true },
];

/** @param {any} running @returns {Step[]} */
function steps(running) {
  const now = running.step ?? 0;
  return running.plan.steps.map((/** @type {number} */ percent, /** @type {number} */ i) => {
    const at = i + 1;
    const due = at === now + 1 ? (running.step === null ? "next" : `due in ${until(running.nextStepAt)}`) : `${span((at - now - 1) * running.plan.everySeconds)} after that`;
    return { at, percent, state: at < now ? "over" : at === now ? `for ${age(running.stepSince)}` : due };
  });
}

/** Returns `name.namespace` of a node id. @param {string} id */
const proxyOf = (id) => String(id).split("~")[2] ?? String(id);

/** @type {import("./table.js").Column[]} */
const PROXIES = [
  { header: "Proxy", cell: (row) => h("a", { href: `#/proxies?filter=${encodeURIComponent(proxyOf(row.id))}` }, proxyOf(row.id)), key: (row) => proxyOf(row.id) },
  { header: "Node", cell: (row) => row.id, wide: true },
  { header: "State", cell: (row) => row.error === null
    ? badge({ tone: "info", icon: "sync", rank: 0 }, "has it") : [badge({ tone: "bad", icon: "bad", rank: 1 }, "refused it"), h("p", { class: "fine" }, row.error)],
    key: (row) => (row.error === null ? 0 : 1), wide: true },
];

/** Returns the share's proxies: first those that refused, some of which may have left. @param {any} running @returns {{ id: string, error: string | null }[]} */
function proxies(running) {
  const refusals = (running.refusals ?? []).map((/** @type {any} */ one) => ({ id: one.proxy, error: one.error }));
  const refused = new Set(refusals.map((/** @type {any} */ one) => one.id));
  return [...refusals, ...running.share.filter((/** @type {string} */ id) => !refused.has(id)).map((/** @type {string} */ id) => ({ id, error: null }))];
}
