// Tables. There is one below each picture: to read, to sort, to copy, and for people who can't see the picture.

import { h, icon } from "./dom.js";
import { plural } from "./format.js";

/**
 * @typedef {{ header: string, cell: (row: any) => (Node | string | (Node | string)[]), number?: boolean, key?: (row: any) => string | number, wide?: boolean }} Column
 */

/** Number of rows drawn at first. */
const STEP = 100;

/** Sort order and number of rows that people chose, by table. @type {Map<string, { column: number, down: boolean, shown: number }>} */
const chosen = new Map();

/**
 * @param {string} name name of the rows, unique among the tables of a page
 * @param {Column[]} columns
 * @param {any[]} rows
 * @param {() => void} redraw
 * @param {{ caption?: string, empty?: string }} [more]
 */
export function table(name, columns, rows, redraw, more = {}) {
  const choice = chosen.get(name) ?? { column: -1, down: false, shown: STEP };
  const by = columns[choice.column];
  const value = by && (by.key ?? ((/** @type {any} */ row) => String(by.cell(row))));
  const sorted = value ? [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return choice.down ? -order : order;
  }) : rows;
  /** @param {Partial<typeof choice>} change */
  const choose = (change) => {
    chosen.set(name, { ...choice, ...change });
    redraw();
  };
  const head = columns.map((column, at) => {
    const sort = choice.column === at ? (choice.down ? "descending" : "ascending") : "none";
    if (!column.key) return h("th", { scope: "col", class: classes(column) }, column.header);
    return h("th", { scope: "col", class: classes(column), "aria-sort": sort },
      h("button", { type: "button", onclick: () => choose({ column: at, down: choice.column === at && !choice.down }) },
        column.header, h("span", { class: "sort", "aria-hidden": "true" }, sort === "none" ? "↕" : sort === "ascending" ? "↑" : "↓")));
  });
  const body = sorted.slice(0, choice.shown).map((row) =>
    h("tr", {}, columns.map((column, at) => {
      const cell = column.cell(row);
      const of = classes(column, typeof cell === "string" && SHORT.test(cell));
      return at === 0
        ? h("th", { scope: "row", class: of }, cell)
        : h("td", { class: of, "data-label": column.header }, cell);
    })));
  return h("div", { class: "table", "data-key": `table-${name}` },
    h("table", {},
      h("caption", { class: more.caption ? "" : "unseen" }, more.caption ?? name),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body)),
    rows.length === 0 && h("p", { class: "empty" }, more.empty ?? `No ${name}.`),
    rows.length > choice.shown && h("p", { class: "more" },
      `${plural(choice.shown, "row")} of ${rows.length} `,
      h("button", { type: "button", class: "quiet", onclick: () => choose({ shown: choice.shown + STEP * 5 }) }, "Show more")));
}

/** A number, a time or an age: it must not break inside its digits. */
const SHORT = /^[-\d:.,\u202f\u2013 dhms]{1,20}$/;

/** @param {Column} column @param {boolean} [isShort] */
const classes = (column, isShort = false) => [column.number ? "number" : "", column.wide ? "wide" : "", isShort ? "short" : ""].filter(Boolean).join(" ") || null;

/**
 * Returns a word with its icon.
 * @param {import("./states.js").Look} look
 * @param {string} word
 */
export const badge = (look, word) => h("span", { class: `badge ${look.tone}` }, icon(look.icon), h("span", {}, word));
