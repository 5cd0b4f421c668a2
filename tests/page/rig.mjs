// What the tests stand on: programs that are ended with the test, a browser that leaves this machine alone, and waits with a limit.

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
/** As built here; $STRAIT names another, as of the tests over real clusters. */
const program = (name) => (name === "strait" && process.env.STRAIT) || join(target, "debug", name);
const axePath = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

/** Waits until `what` gives something, for at most so many milliseconds; `said` is what was waited for, or tells it then. */
export async function until(what, limit, said) {
  const end = Date.now() + limit;
  for (;;) {
    const found = await what();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${limit} ms: ${typeof said === "function" ? await said() : said}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** A command of ours that is over when it has done what it should. */
export const command = (...words) => promisify(execFile)(program("strait"), words);

/** A program that goes on; what it does is seen elsewhere. */
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

/** A program, until it has said a line that `wanted` finds something in. */
export async function start(name, parameters, wanted) {
  const child = spawn(program(name), parameters, { stdio: ["ignore", "pipe", "ignore"], env: { PATH: process.env.PATH } });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const end = () => stop(child, ended);
  const lines = createInterface({ input: child.stdout });
  const found = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`${name} has not said what was waited for`)), 60_000);
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

/** A control plane: where it is, and a command line for it. */
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

  /** One that reads a directory of Secrets. */
  static async serve(secrets, state, address = "127.0.0.1:0", more = []) {
    const flags = ["serve", "--config-dir", secrets, "--state-dir", state, "--xds-address", "127.0.0.1:0", "--admin-address", address, ...more];
    const { found, stop } = await start("strait", flags, (line) => (line.startsWith("{") ? JSON.parse(line) : undefined));
    return Object.assign(new ControlPlane(`http://${found.admin}`, join(state, "admin-token"), stop), { xds: found.xds });
  }

  /** What a command prints, whatever its exit code. */
  async strait(...words) {
    const flags = ["--server", this.server, "--token-file", this.tokenFile];
    const run = promisify(execFile)(program("strait"), [...words, ...flags], { maxBuffer: 1 << 26 });
    const ended = await run.catch((failed) => {
      // A number if it ran, else what kept it from it, as ENOENT.
      if (typeof failed.code !== "number") throw failed;
      return failed;
    });
    return ended.stdout;
  }

  /** A link that lets one browser in. */
  async link() {
    return (await this.strait("ui", "--print")).trim();
  }
}

/** A folder that goes with the test. */
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

/** A tab that notes everything a page must not do: errors, breaches of the policy, requests elsewhere. */
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
    // Scripts as they are now, without building them in: STRAIT_PAGE_FILES=../../crates/server/src/admin/page.
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

/** The same without leaving the page. */
export async function turn(page, hash) {
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
  await drawn(page, hash);
}

export async function drawn(page, hash) {
  await page.waitForFunction((at) => document.documentElement.dataset.ready === at, new URL(hash, "http://x/").hash, { timeout: 20_000 });
  // Answers that a page asks for by and by.
  await page.waitForFunction(() => !document.body.innerText.includes("Asking the control plane"), undefined, { timeout: 20_000 });
}

/** What accessibility rules find, in a line each. */
export async function axe(page) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate((await import("node:fs")).readFileSync(axePath, "utf8"));
  return page.evaluate(async () => {
    const { violations, passes } = await window.axe.run(document, { resultTypes: ["violations"], elementRef: false });
    if (passes.length < 10) return ["the rules were not looked at"];
    return violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join(" | ")} (${one.nodes.length})`);
  });
}

/** Elements that are wider than the window, where the page can be scrolled sideways. */
export function tooWide(page) {
  return page.evaluate(() => {
    if (document.documentElement.scrollWidth <= innerWidth) return [];
    const wide = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1 || one.scrollWidth > innerWidth);
    return [`${document.documentElement.scrollWidth} of ${innerWidth}`, ...wide.slice(-3).map((one) => one.outerHTML.slice(0, 120))];
  });
}

/** Both themes in both sizes: a desk's and a phone's. */
const LOOKS = [["light", 1280, 720], ["dark", 1280, 720], ["dark", 390, 844], ["light", 390, 844]];

/**
 * Every page in every look: nothing said on the console, nothing asked elsewhere, nothing too wide, and readable for everybody where `rules`
 * says so of the page. `shows` is what stands there where no data does.
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

/** What a person reads, without the spaces that group digits. */
export const words = async (locator) => (await locator.innerText()).replaceAll("\u202f", "").replaceAll(/\s+/g, " ");
