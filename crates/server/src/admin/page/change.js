// Page of one change of the timeline: its causes, its effect, and what each proxy did with it, as far as that is kept.

import * as api from "./api.js";
import { h, icon } from "./dom.js";
import { NONE, number, plural, text } from "./format.js";
import { help, mend } from "./mend.js";
import { badge, table } from "./table.js";

/** @typedef {import("./main.js").Context} Context @typedef {import("./main.js").View} View @typedef {import("./states.js").Look} Look */

/** @param {any} row */
export const changeHref = (row) => `#/timeline/${encodeURIComponent(row.seq)}`;

/** Formats a duration like the CLI. @param {unknown} ms */
export const milliseconds = (ms) => typeof ms === "number" ? `${ms.toFixed(1)} ms` : NONE;

/** Formats an object that caused a change, in the CLI's words. @param {any} cause */
export function causeName(cause) {
  if (!cause) return NONE;
  const name = cause.namespace ? ` ${cause.namespace}/${cause.name}` : cause.name ? ` ${cause.name}` : "";
  return `${cause.kind}${name}${cause.cluster ? ` in ${cause.cluster}` : ""}`;
}

/** Returns the proxy's name from a node id. @param {unknown} id */
export const nameOfId = (id) => String(id).split("~")[2] ?? String(id);

/** Looks of what a proxy did with a change, the worst first. @type {Record<string, Look>} */
const ANSWERS = {
  refused: { tone: "bad", icon: "bad", rank: 3 },
  unfollowed: { tone: "doubtful", icon: "warn", rank: 2 },
  waiting: { tone: "info", icon: "sync", rank: 1 },
  acknowledged: { tone: "good", icon: "ok", rank: 0 },
};

/** @param {any} row */
const answerLook = (row) => ANSWERS[row.answer] ?? ANSWERS.unfollowed;

/**
 * @param {Context} context
 * @param {string} seq
 * @param {(row: any) => { look: Look, words: string }} followed
 * @returns {View}
 */
export function changePage({ redraw }, seq, followed) {
  const needs = ["/debug/events"];
  const command = ["strait", "events", seq];
  const row = (api.get("/debug/events")?.value ?? []).find((/** @type {any} */ one) => String(one.seq) === seq);
  const links = h("p", { class: "links" }, h("a", { href: "#/timeline" }, "Timeline"));
  if (!row) {
    return { title: "Change", needs, command: ["strait", "events"], body: () => [links,
      h("section", { class: "card notice" }, h("h2", {}, "Change not found"), h("p", {}, `The control plane does not keep change ${seq} any more, or it never existed.`))] };
  }
    // A bundle has only the list of changes.
  const detail = api.get(`/debug/events?seq=${encodeURIComponent(seq)}`);
  const refusals = detail?.value?.refusals ?? [];
  const steps = detail?.value?.steps ?? [];
  if (refusals.length > 0) api.get("/debug/codes");
  const { look, words } = followed(row);
  const causes = [row.cause, ...row.otherCauses].map(causeName).concat(row.moreCauses ? [`${number(row.moreCauses)} more`] : []);
  return {
    title: `Change ${seq}`, needs, command, lead: badge(look, words),
    body: () => [
      links,
      ...refusals.map((/** @type {any} */ one) => h("section", { class: "card bad", role: "note" },
        h("h2", {}, icon("bad"), `Refused by ${nameOfId(one.proxy)}`), h("p", { class: "said" }, text(one.error)))),
      refusals.length > 0 && (mend("STR0507") ?? help("STR0507")),
      h("section", { class: "card" }, h("dl", { class: "facts-list" }, [
        ["Heard", row.at], ["Cause", causes.join(", ")], ["Effect", text(row.effect)],
        ["Published", `started after ${milliseconds(row.waitedMs)}, published after ${milliseconds(row.publishedMs)}, version ${row.version}`],
        ["Proxies", words], ["Last answer", `after ${milliseconds(row.ms)}`],
      ].flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
      detail?.error && h("p", { class: "fine" }, `The proxies of this change can't be shown: ${detail.error}`),
      steps.length > 0 && table("proxies of the change", [
        { header: "Proxy", cell: (one) => nameOfId(one.proxy), key: (one) => nameOfId(one.proxy) },
        { header: "Cluster", cell: (one) => text(one.cluster), key: (one) => text(one.cluster) },
        { header: "Sent after", cell: (one) => milliseconds(one.sentMs), key: (one) => one.sentMs ?? -1 },
        { header: "Answered after", cell: (one) => milliseconds(one.answeredMs), key: (one) => one.answeredMs ?? Infinity },
        { header: "Answer", cell: (one) => badge(answerLook(one), one.answer), key: (one) => answerLook(one).rank },
      ], steps, redraw, { caption: "Proxies" }),
      steps.length > 0 && row.proxies > steps.length && h("p", { class: "fine" },
        `${plural(row.proxies - steps.length, "more is", "more are")} counted. The control plane keeps the steps of the proxies that got the change first and of those that answered last.`),
    ],
  };
}
