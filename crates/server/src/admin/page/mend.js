// Fixes for error codes, in the words of `strait check`.

import * as api from "./api.js";
import { h } from "./dom.js";
import { codeOf } from "./format.js";

/** @param {string} of */
export function help(of) {
  const code = codeOf(of);
  return code && h("p", { class: "fine" }, "help: ", h("code", {}, `strait help ${code}`));
}

/**
 * Returns the fix for an error code, in the words of `strait check`, or null.
 * @param {string | null | undefined} code
 * @param {string} [id] id of the affected cluster
 */
export function mend(code, id) {
  /** @type {string | undefined} */
  let next = code ? api.get("/debug/codes")?.value?.[code]?.next : undefined;
  if (!code || !next) return null;
    // Replace ID only as an argument of a command; elsewhere it is an ordinary word.
  if (id) for (const word of ["cluster get ", "cluster rotate ", "--name ", "--from-file="]) next = next.replaceAll(`${word}ID`, `${word}${id}`);
  return h("p", { class: "mend", "data-code": code }, h("strong", {}, "To fix it: "), next.split("\n").map((line) => [line, h("br", {})]).flat().slice(0, -1),
    " ", h("code", {}, `strait help ${code}`));
}
