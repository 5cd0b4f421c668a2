// Creates elements from values. Text from outside is only ever inserted as text: no function here accepts markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Attributes
 */

/** Control characters, and those that change the text direction. They are shown escaped, like in the CLI. */
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** @param {string} text */
export function clean(text) {
  return text.replace(HIDDEN, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

/**
 * @param {Element} element
 * @param {Attributes} attributes
 * @param {(Child | Child[])[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      /** @type {any} */ (element)[name] = value;
    } else if (name === "value") {
      /** @type {HTMLInputElement} */ (element).value = String(value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : clean(String(child)));
  }
}

/**
 * Creates an HTML element. Attributes whose names start with "on" are event handlers.
 * @param {string} name
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  fill(element, attributes, children);
  return element;
}

/**
 * Creates an SVG element.
 * @param {string} name
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, name));
  fill(element, attributes, children);
  return element;
}

const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onsubmit", "onfocus", "ontoggle"];

/**
 * Changes `shown` until it equals `next`, and leaves equal parts alone. Focus, scroll positions, opened `<details>` and text
 * that a person is typing stay.
 * @param {Element} shown
 * @param {Element} next
 */
export function patch(shown, next) {
  for (const { name } of [...shown.attributes]) {
    const theirs = name === "open" && shown.nodeName === "DETAILS";
        // Removes attributes that were set by measuring after the last drawing. A `<details>` that a person opened stays open.
    if (!next.hasAttribute(name) && !theirs) shown.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
  for (const name of HANDLERS) {
    const [from, to] = [/** @type {any} */ (next), /** @type {any} */ (shown)];
    if (to[name] !== from[name]) to[name] = from[name];
  }
  if (shown instanceof HTMLInputElement && next instanceof HTMLInputElement) {
    if (document.activeElement !== shown) shown.value = next.value;
  }
  if (shown.hasAttribute("data-drawn")) return;
  patchChildren(shown, next);
  if (shown instanceof HTMLSelectElement && next instanceof HTMLSelectElement) {
    shown.value = next.value;
  }
}

/** @param {Node} node */
const keyOf = (node) => (node instanceof Element ? node.getAttribute("data-key") : null);

/**
 * @param {Element} shown
 * @param {Element} next
 */
function patchChildren(shown, next) {
  /** @type {Map<string, ChildNode>} */
  const keyed = new Map();
  for (const child of shown.childNodes) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  let at = shown.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    if (key !== null) {
      const known = keyed.get(key);
      if (known && known !== at && known.parentNode === shown) {
        shown.insertBefore(known, at);
        at = known;
      }
    }
    if (at === null) {
      shown.append(wanted);
      continue;
    }
    const after = at.nextSibling;
    if (at.nodeName === wanted.nodeName && keyOf(at) === key) {
      if (at instanceof Element && wanted instanceof Element) patch(at, wanted);
      else if (at.nodeValue !== wanted.nodeValue) at.nodeValue = wanted.nodeValue;
      at = after;
    } else if (keyOf(at) !== null) {
      shown.insertBefore(wanted, at);
    } else {
      at.replaceWith(wanted);
      at = after;
    }
  }
  while (at !== null) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

/** @type {Record<string, string>} */
const PATHS = {
  ok: "M3.5 8.5l3 3 6-7",
  bad: "M4 4l8 8M12 4l-8 8",
  warn: "M8 3.5v5.5M8 12.2v.3",
  clock: "M8 2.400a5.600 5.600 0 1 0 0 11.200 5.600 5.600 0 0 0 0-11.200zM8 5.200v3l2 1.300",
  pause: "M6 4.5v7M10 4.5v7",
  down: "M8 3.5v8M4.7 8.4L8 11.7l3.3-3.3",
  sync: "M12.4 6.2A4.8 4.8 0 0 0 4 5.4M3.6 9.8a4.8 4.8 0 0 0 8.4.8M4 2.6v2.9h2.9M12 13.4v-2.9H9.1",
  disk: "M3.5 4.5c0-1.5 9-1.5 9 0v7c0 1.5-9 1.5-9 0zM3.5 4.5c0 1.5 9 1.5 9 0",
  lock: "M4 7.5h8v5.5H4zM5.8 7.5V5.3a2.2 2.2 0 0 1 4.4 0v2.2",
  shield: "M8 2.5l5 1.8v3.6c0 3-2.1 4.9-5 5.8-2.9-.9-5-2.8-5-5.8V4.300z",
  two: "M3.5 3.500h6v6h-6zM6.500 6.500h6v6h-6z",
  anchor: "M8 5.600v8M4.800 7.600h6.400M3 10c.6 2.300 2.500 3.600 5 3.600s4.400-1.300 5-3.600M8 5.600a1.700 1.700 0 1 0 0-3.400 1.700 1.700 0 0 0 0 3.400z",
  map: "M2.500 4l3.700-1.500 3.600 1.500 3.700-1.500v9.500l-3.700 1.500-3.600-1.500-3.700 1.500zM6.200 2.500v9.500M9.800 4v9.500",
  boxes: "M2.500 2.500h4.500v4.500H2.500zM9 2.500h4.500v4.500H9zM2.500 9h4.500v4.500H2.500zM9 9h4.500v4.500H9z",
  flow: "M2.500 4c5 0 6 4 11 4M2.500 12c5 0 6-4 11-4",
  dots: "M3 3h2v2H3zM7 3h2v2H7zM11 3h2v2h-2zM3 7h2v2H3zM7 7h2v2H7zM11 7h2v2h-2zM3 11h2v2H3zM7 11h2v2H7z",
  ladder: "M5 2v12M11 2v12M5 4.500h6M5 8h6M5 11.500h6",
  copy: "M5.500 5.500h7.500v8H5.500zM3 10.500v-8h7.500",
  sun: "M8 5.200a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600zM8 1.800v1M8 13.200v1M1.800 8h1M13.200 8h1M3.600 3.600l.7.7M11.700 11.700l.7.7M3.600 12.400l.7-.7M11.700 4.300l.7-.7",
  moon: "M12.800 9.600A5.200 5.200 0 0 1 6.400 3.200a5.200 5.200 0 1 0 6.400 6.400z",
  auto: "M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11",
  right: "M6 3.500L10.500 8 6 12.500",
  close: "M4 4l8 8M12 4l-8 8",
};

/**
 * Creates an icon. It stands next to a word and never replaces one.
 * @param {string} name
 */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] ?? PATHS.warn }));
}
