// The environment of the tests: programs that end with the test, a browser without access to other machines, and waits with a time limit.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import { summary } from "./worlds.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
/** The path of a built program. $STRAIT overrides the path of `strait`, for tests with real clusters. */
const program = (name) => (name === "strait" && process.env.STRAIT) || join(target, "debug", name);
const axePath = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

/** Waits until `what` returns a truthy value, for at most `limit` milliseconds. `expected` describes the expected state: a text, or a function that returns it. */
export async function until(what, limit, expected) {
  const end = Date.now() + limit;
  for (;;) {
    const found = await what();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${limit} ms: ${typeof expected === "function" ? await expected() : expected}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Runs one of our programs until it ends. */
export const command = (...words) => promisify(execFile)(program("strait"), words);

/** Starts a program without reading its output. */
export function run(name, parameters) {
  const child = spawn(program(name), parameters, { stdio: "ignore", env: { PATH: process.env.PATH } });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  return { stop: () => stop(child, ended) };
}

async function stop(child, ended) {
  child.kill("SIGTERM");
  await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 10_000))]);
  child.kill("SIGKILL");
}

/** Starts a program, and waits until `wanted` returns a value for a line of its output. */
export async function start(name, parameters, wanted) {
  const child = spawn(program(name), parameters, { stdio: ["ignore", "pipe", "ignore"], env: { PATH: process.env.PATH } });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const end = () => stop(child, ended);
  const lines = createInterface({ input: child.stdout });
  const found = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`${name} did not print the expected line`)), 60_000);
    ended.then((code) => reject(new Error(`${name} ended with ${code}`)));
    lines.on("line", (line) => {
      const value = wanted(line);
      if (value === undefined) return;
      clearTimeout(late);
      resolve(value);
    });
  }).catch(async (error) => {
    await end();
    throw error;
  });
  return { found, stop: end };
}

/** A control plane, and the CLI for it. */
export class ControlPlane {
  constructor(server, tokenFile, stop) {
    Object.assign(this, { server, tokenFile, stop });
  }

  /** The demo, with its proxies. */
  static async demo() {
    const seen = {};
    const { found, stop } = await start("strait", ["demo", "--clusters", "3"], (line) => {
      const [, name, value] = /export (STRAIT_\w+)=(\S+)/.exec(line) ?? [];
      if (name) seen[name] = value;
      return seen.STRAIT_SERVER && seen.STRAIT_TOKEN_FILE ? seen : undefined;
    });
    return new ControlPlane(found.STRAIT_SERVER, found.STRAIT_TOKEN_FILE, stop);
  }

  /** Starts a control plane that reads a directory of Secrets. */
  static async serve(secrets, state, address = "127.0.0.1:0", more = []) {
    const flags = ["serve", "--config-dir", secrets, "--state-dir", state, "--xds-address", "127.0.0.1:0", "--admin-address", address, ...more];
    const { found, stop } = await start("strait", flags, (line) => (line.startsWith("{") ? JSON.parse(line) : undefined));
    return Object.assign(new ControlPlane(`http://${found.admin}`, join(state, "admin-token"), stop), { xds: found.xds });
  }

  /** Returns the output of a command, regardless of its exit code. */
  async strait(...words) {
    const flags = ["--server", this.server, "--token-file", this.tokenFile];
    const run = promisify(execFile)(program("strait"), [...words, ...flags], { maxBuffer: 1 << 26 });
    const ended = await run.catch((failed) => {
      // A number if the program ran, otherwise an error code such as ENOENT.
      if (typeof failed.code !== "number") throw failed;
      return failed;
    });
    return ended.stdout;
  }

  /** Returns a link that signs in one browser. */
  async link() {
    return (await this.strait("ui", "--print")).trim();
  }
}

/** Returns a folder that is deleted after the test. */
export function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "strait-page-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

export function browser() {
  return chromium.launch({
    executablePath: process.env.STRAIT_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** Opens a tab that records everything a page must not do: errors, violations of the content security policy, requests to other hosts. */
export async function tab(of, { server, width = 1280, height = 720, colorScheme = "light", storageState, world, expected = () => false }) {
  const context = await of.newContext({ viewport: { width, height }, colorScheme, storageState, reducedMotion: "reduce" });
  const faults = [];
  const note = (fault) => {
    if (!expected(fault)) faults.push(fault);
  };
  await context.route("**/*", (route) => {
    const url = new URL(route.request().url());
    if (url.origin !== server) note(`asks ${url}`);
    if (route.request().method() !== "GET") note(`${route.request().method()} ${url}`);
    // The current scripts, instead of the built-in ones: STRAIT_PAGE_FILES=../../crates/server/src/admin/page.
    const file = process.env.STRAIT_PAGE_FILES && /^\/page\/([\w.]+)$/.exec(url.pathname)?.[1];
    if (file) return route.fulfill({ path: join(process.env.STRAIT_PAGE_FILES, file) });
    const shown = world?.();
    const answer = shown?.[url.pathname + url.search] ?? shown?.[url.pathname] ?? (shown?.["/debug/clusters"] && url.pathname === "/debug/summary" ? summary(shown) : undefined);
    if (typeof answer === "function") return answer(route);
    if (answer !== undefined) return route.fulfill({ json: answer });
    return url.origin === server ? route.continue() : route.abort();
  });
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && note(`console: ${message.text()}`));
  page.on("pageerror", (error) => note(`error: ${error.stack}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return { context, page, faults };
}

/** Waits until the page of `hash` is drawn with its data. */
export async function open(page, server, hash) {
  await page.goto(`${server}/${hash}`);
  await drawn(page, hash);
}

/** Shows the page of `hash` without reloading, and waits until it is drawn with its data. */
export async function turn(page, hash) {
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
  await drawn(page, hash);
}

export async function drawn(page, hash) {
  await page.waitForFunction((at) => document.documentElement.dataset.ready === at, new URL(hash, "http://x/").hash, { timeout: 20_000 });
  // Some pages request further data after the first response.
  await page.waitForFunction(() => !document.body.innerText.includes("Asking the control plane"), undefined, { timeout: 20_000 });
}

/** Returns the violations of accessibility rules, one line per rule. */
export async function axe(page) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate((await import("node:fs")).readFileSync(axePath, "utf8"));
  return page.evaluate(async () => {
    const { violations, passes } = await window.axe.run(document, { resultTypes: ["violations"], elementRef: false });
    if (passes.length < 10) return ["the accessibility rules were not checked"];
    return violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join(" | ")} (${one.nodes.length})`);
  });
}

/** Returns elements that are wider than the window, if the page can be scrolled sideways. */
export function tooWide(page) {
  return page.evaluate(() => {
    if (document.documentElement.scrollWidth <= innerWidth) return [];
    const wide = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1 || one.scrollWidth > innerWidth);
    return [`${document.documentElement.scrollWidth} of ${innerWidth}`, ...wide.slice(-3).map((one) => one.outerHTML.slice(0, 120))];
  });
}

/** Both themes in both sizes: desktop and phone. */
const LOOKS = [["light", 1280, 720], ["dark", 1280, 720], ["dark", 390, 844], ["light", 390, 844]];

/**
 * Checks every page in every theme and size: nothing is logged to the console, no other host is requested, nothing is too wide, and
 * accessibility rules hold if `rules` requires it for the page. `shows` is the text of a page without data.
 */
export async function every(of, shown, pages, { rules = () => true, shows } = {}) {
  const { context, page, faults } = await tab(of, shown);
  await page.goto(`${shown.server}/${pages[0]}`);
  for (const hash of pages) {
    if (shows) {
      await page.evaluate((to) => {
        location.hash = to;
      }, hash);
      await page.locator("main").getByText(shows).first().waitFor({ timeout: 20_000 });
    } else {
      await turn(page, hash);
    }
    for (const [colorScheme, width, height] of LOOKS) {
      const at = `${hash} ${colorScheme} ${width}x${height}`;
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.setViewportSize({ width, height });
      assert.deepEqual(await tooWide(page), [], at);
      if (rules(hash)) assert.deepEqual(await axe(page), [], at);
    }
  }
  assert.deepEqual(faults, []);
  assert.equal(await page.evaluate(() => window.harmed), undefined);
  await context.close();
}

/** Returns the visible text, without the spaces that group digits. */
export const words = async (locator) => (await locator.innerText()).replaceAll("\u202f", "").replaceAll(/\s+/g, " ");
