// The page with two real clusters. tests/cluster/traffic starts this test and passes the address of its control plane. Every page is drawn
// from real responses and compared with the commands. Then a member's API server stops, and the map shows it.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { ControlPlane, browser, every, tab, turn, until, words } from "./rig.mjs";
import { compareWithCommands } from "./same.mjs";

/** Program that stops and continues the API server of c2 with a signal. */
const outage = (signal) => promisify(execFile)(process.env.STRAIT_OUTAGE, [signal]);
/** The time limit of a wait, with two clusters on the same machine. */
const SOON = 30_000;

let chromium;
let plane;
let context;
let page;
let faults;

before(async () => {
  plane = new ControlPlane(process.env.STRAIT_SERVER, process.env.STRAIT_TOKEN_FILE, () => {});
  chromium = await browser();
  ({ context, page, faults } = await tab(chromium, { server: plane.server }));
  await page.goto(await plane.link());
  await page.locator(".sea").waitFor({ timeout: SOON });
});

after(() => chromium?.close());

test("each page agrees with the commands, and is readable in both themes and sizes", async () => {
  const clients = JSON.parse(await plane.strait("proxy", "list", "-o", "json")).filter((one) => one.type === "sidecar");
  const { name, namespace } = /~(?<name>[^~.]+)\.(?<namespace>[^~.]+)~/.exec(clients[0].id).groups;
  const asker = `${name}.${namespace}@${clients[0].cluster}`;
  const { clusters, status, services } = await compareWithCommands(page, plane, asker);
  assert.deepEqual(clusters.map((one) => [one.id, one.state]).sort(), [["c1", "live"], ["c2", "live"]]);
  assert.deepEqual(status.problems, []);
  await turn(page, "#/map");
  await until(async () => /Nothing needs a look/.test(await words(page.locator(".panel"))), SOON, "nothing needs a look");
  const pages = ["#/map", "#/map/cluster/c2", "#/map/network/n1", "#/clusters", "#/clusters/c1", "#/services", `#/services/${services[0].hostname}`, "#/proxies",
    `#/proxies/${clients[0].key}`, `#/explain?proxy=${encodeURIComponent(asker)}&service=${services[0].hostname}`, "#/timeline", "#/timeline/rollout", "#/trust"];
  await every(chromium, { server: plane.server, storageState: await context.storageState() }, pages);
  assert.deepEqual(faults, []);
});

test("stopped API server is shown on the map within 25 s with its fix, and its return as well", async () => {
  await turn(page, "#/map");
  const box = page.locator(".box", { hasText: "c2" });
  const state = (wanted, limit) => until(async () => (await box.locator(".state").innerText().catch(() => "")) === wanted, limit, `c2 is ${wanted}`);
  await state("live", SOON);
  await outage("STOP");
  try {
    await state("stale", 25_000);
    assert.match(await words(box), /heard \d+s ago/);
    const row = page.locator(".troubles li", { hasText: "Cluster c2" }).first();
    assert.match(await words(row), /^Cluster c2 stale: STR0301/);
    await row.locator("a").first().click();
    await page.locator(".mend[data-code=STR0301]").waitFor({ timeout: SOON });
  } finally {
    await outage("CONT");
  }
  await turn(page, "#/map");
  await state("live", 60_000);
  assert.deepEqual(faults, []);
});
