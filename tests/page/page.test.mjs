// The page in a real browser: every page in every state, theme and size, and the actions of its users.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { ControlPlane, axe, browser, command, every, folder, open, run, start, tab, tooWide, turn, until, words } from "./rig.mjs";
import { compareWithCommands } from "./same.mjs";
import { HOSTILE, calm, crowd, empty, failure, failures, hostile, stopped } from "./worlds.mjs";

/** Time limit for a change of the page, in milliseconds. */
const SOON = 20_000;

const REVIEWS = "reviews.shop.svc.cluster.local";
/** A proxy and a service that every world contains an explanation for. */
const QUESTION = `#/explain?proxy=web-0.shop%40hub&service=${REVIEWS}`;
const PAGES = [
  "#/map", "#/map/cluster/prod-ap", "#/map/network/ap-sg", "#/clusters", "#/clusters/prod-ap", "#/services", `#/services/${REVIEWS}`,
  "#/proxies", "#/proxies/103", QUESTION, "#/explain", "#/timeline", "#/timeline/37", "#/timeline/rollout", "#/trust",
];
/** The pages whose text consists of hostile names only. */
const HOSTILE_PAGES = [
  ...["#/map", "#/clusters", "#/services", "#/proxies", "#/timeline", "#/timeline/0", "#/timeline/rollout", "#/trust", "#/explain?proxy=a&service=b", "#/proxies/1"],
  ...HOSTILE.slice(0, 5).flatMap((name) => [`#/clusters/${encodeURIComponent(name)}`, `#/services/${encodeURIComponent(name)}`, `#/map/cluster/${encodeURIComponent(name)}`]),
];

/** Tests that mostly wait, and therefore run concurrently. */
const concurrentTests = [];
const testConcurrently = (name, run) => concurrentTests.push([name, run]);

let chromium;
let demo;
let session;

before(async () => {
  [chromium, demo] = await Promise.all([browser(), ControlPlane.demo()]);
  const { context, page } = await tab(chromium, { server: demo.server });
  await page.goto(await demo.link());
  session = await context.storageState();
  await context.close();
});

after(async () => {
  await chromium?.close();
  await demo?.stop();
});

const START = Date.now();
/** Returns responses with the same content for every path. */
const always = (answer) => Object.fromEntries(
  ["clusters", "networks", "summary", "proxies", "services", "events", "rollout", "mesh", "certificates", "explain", "codes"].map((path) => [`/debug/${path}`, answer]));
const unready = (route) => route.fulfill({ status: 503, json: { error: "the mesh is not complete yet; waiting for cluster west" } });

/** States of the control plane, and the pages that show them. All pages are checked in both themes and sizes. */
const STATES = [
  { name: "a mesh that is well", world: calm(START), pages: PAGES },
  { name: "a mesh in trouble", world: failure(START), pages: PAGES },
  { name: "an empty mesh", world: empty(), pages: ["#/map", "#/map/cluster/prod-ap", "#/clusters", "#/services", "#/proxies", "#/explain", "#/timeline", "#/timeline/7", "#/timeline/rollout", "#/trust"] },
  { name: "a stopped rollout", world: stopped(START), pages: PAGES },
  { name: "a hundred clusters", world: crowd(START), pages: ["#/map", "#/map/network/region-03", "#/clusters", "#/proxies", "#/services"] },
  // Accessibility rules report the invalid names of this world, which is not a fault of the page.
  { name: "hostile names", world: hostile(START), pages: HOSTILE_PAGES, rules: () => false },
  { name: "no answer yet", world: always(() => {}), pages: ["#/map", "#/clusters", "#/services", "#/proxies", "#/explain", "#/timeline", "#/trust"], shows: "Asking the control plane" },
  { name: "a mesh that is not complete yet", world: always(unready), pages: ["#/map", "#/clusters", "#/services", "#/proxies", "#/explain", "#/timeline", "#/trust"], shows: "waiting for cluster west", expected: (fault) => fault.includes("503") },
  ...failures(START).map(({ name, world }) => ({ name, world, pages: PAGES, rules: (hash) => ["#/map", "#/clusters"].includes(hash) })),
];

// A landing checks every second state: STRAIT_PAGE_HALF is 0 or 1, otherwise all are checked.
const half = process.env.STRAIT_PAGE_HALF || undefined;
const states = STATES.filter((_, at) => half === undefined || at % 2 === Number(half));
assert.ok(states.length > 0, `STRAIT_PAGE_HALF is ${half}`);
for (const { name, world, pages, expected, ...how } of states) {
  test(`each page is readable for ${name}`, () => every(chromium, { server: demo.server, storageState: session, world: () => world, expected }, pages, how));
}

test("problems are listed next to the map, the worst first", async () => {
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session, world: () => failure(Date.now()) });
  await open(page, demo.server, "#/map");
  await until(async () => (await page.locator(".troubles li").count()) === 11, SOON, "all eleven");
  const rows = await Promise.all((await page.locator(".troubles li").all()).map(words));
  for (const fact of [/^Cluster lab quarantined: STR0308/, /^Network ap-sg gateway has no address yet/, /^Proxy cart-3.shop refused EDS: malformed/,
    /^Cluster prod-ap 1410 endpoints withheld .* STR0402/, /^Cluster prod-ap its token ends at/, /^Mesh config STR0110: .* How to fix it/, /^Policy STR0601: line 3/, /^Source consul-dc1 stale: no answer/, /^Certificates STR0703: tls.crt does not belong to tls.key/]) {
    assert.ok(rows.some((row) => fact.test(row)), `${fact}: ${rows.join("\n")}`);
  }
  await context.close();
});

test("map shows each failure, and one click shows its fix", async () => {
  const all = failures(Date.now());
  let world = all[0].world;
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => world });
  const codes = await (await context.request.get(`${demo.server}/debug/codes`)).json();
  assert.ok(all.length >= 10);
  for (const one of all) {
    world = one.world;
    await page.goto("about:blank");
    await open(page, demo.server, "#/map");
    const row = page.locator(".troubles li", { has: page.locator("strong") });
    await until(async () => (await row.count()) > 0, SOON, `${one.name}: something on the map`);
    const rows = await Promise.all((await row.all()).map(words));
    assert.deepEqual(rows.filter((text) => !one.fact.test(text)), [], `${one.name}: only this failure is shown`);
    assert.ok((await page.locator(one.mark).count()) > 0, `${one.name}: ${one.mark}`);
    // A command or its beginning, which no other text contains.
    assert.match(one.mend, /^(strait|kubectl|curl|openssl) \S+/, one.name);
    await row.first().locator("a, summary").first().click();
    const mended = page.locator(`.mend[data-code=${one.code}]`).first();
    await mended.waitFor({ timeout: SOON });
    const text = await words(mended);
    assert.ok(text.includes(one.mend) && text.includes(`strait help ${one.code}`), `${one.name}: ${text}`);
    // The page uses the texts of `strait check`.
    const id = /^\^Cluster (\S+)/.exec(one.fact.source)?.[1] ?? "ID";
    const next = codes[one.code].next.replaceAll(/\s+/g, " ").replaceAll(/(cluster (?:get|rotate)) ID/g, `$1 ${id}`);
    assert.ok(text.includes(next), `${one.name}: ${text} | ${next}`);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test("each change of the timeline has a page with the responses of all proxies", async () => {
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session, world: () => failure(Date.now()) });
  await open(page, demo.server, "#/timeline");
  await page.locator("tbody tr", { hasText: "1 refused" }).getByRole("link").first().click();
  await until(async () => (await page.locator("tbody tr").count()) === 40, SOON, "the steps of its proxies");
  assert.match(page.url(), /#\/timeline\/37$/);
  assert.equal(await words(page.locator("#command")), "strait events 37");
  const text = await words(page.locator("main"));
  for (const fact of ["Change 37", "Refused by web-0.shop", "malformed IP address: fe80::1%eth0", "87 of 88, 1 refused", "EndpointSlice shop/reviews-1 in prod-eu", "48 more are counted"]) assert.ok(text.includes(fact), `${text}: ${fact}`);
  const refused = await words(page.locator("tbody tr", { hasText: "refused" }));
  for (const fact of ["web-0.shop", "prod-eu", "1.2 ms", "refused"]) assert.ok(refused.includes(fact), `${refused}: ${fact}`);
  await context.close();
});

test("rollout is shown above the map, on the timeline and on its own page", async () => {
  let world = failure(Date.now());
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => world });
  await open(page, demo.server, "#/map");
  const chip = page.locator(".chip", { hasText: "rollout at 5%: 5 of 97 proxies, 1 refused it" });
  await chip.waitFor({ timeout: SOON });
  await chip.click();
  await page.locator("h1", { hasText: "Rollout" }).waitFor({ timeout: SOON });
  assert.match(page.url(), /#\/timeline\/rollout$/);
  const text = await words(page.locator("main"));
  for (const fact of ["Configuration 9f31c0aa52b7", "Other proxies have 41d88c1f07e9", "Step 1 of 3, for 3m", "Rolled out to 5 of 97 proxies", "1; the rollout stops at 3", /to 25% in (6m\d+s|7m)/,
    "Refusal web-8.shop: Error adding/updating listener(s) 0.0.0.0_80: no such filter", "5%, 25%, 100% of proxies, one step every 600s; stopped if the number of refusing proxies reaches 3, or more than 20%"]) {
    assert.ok(fact instanceof RegExp ? fact.test(text) : text.includes(fact), `${text}: ${fact}`);
  }
  // The page is read-only: it shows the command that ends a rollout.
  assert.deepEqual(await page.locator(".command code").allInnerTexts(),
    ["strait history rollout", "strait history rollout --promote", "strait history rollout --abort"]);
  const copy = page.getByRole("button", { name: "Copy the command strait history rollout --abort" });
  await copy.click();
  await until(async () => /Copied|is selected/.test(await page.locator("[role=status]").textContent()), SOON, "the command is copied or selected");
  const states = page.locator("table", { hasText: "Proxies of the share" }).locator("tbody tr");
  assert.deepEqual([await states.count(), /web-8\.shop.*refused it.*no such filter/.test(await words(states.first()))], [5, true]);
  await turn(page, "#/timeline");
  assert.match(await words(page.locator(".rollout").first()), /A change is rolled out to 5% of proxies.*Rolled out to 5 of 97 proxies/);
  // After it has stopped, the page shows the reason, the held configuration, and the command that resumes the rollout.
  world = stopped(Date.now());
  await page.reload();
  await page.locator(".rollout", { hasText: "A rollout was stopped" }).waitFor({ timeout: SOON });
  for (const hash of ["#/timeline", "#/timeline/rollout"]) {
    await turn(page, hash);
    const text = await words(page.locator("main"));
    for (const fact of ["stopped at 5%: 3 proxies rejected the change, among them sidecar~10.0.0.9~web-8.shop", "Waiting 2 changes", "strait history release"]) assert.ok(text.includes(fact), `${hash}: ${text}: ${fact}`);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test("bundle is shown in its original state without a control plane", async (t) => {
  const file = join(folder(t), "bundle.tar.gz");
  await demo.strait("support-bundle", "--file", file);
  const seen = {};
  const { found, stop } = await start("strait", ["ui", "--print", "--bundle", file], (line) => (line.includes("/login?code=") ? line.trim() : undefined));
  t.after(stop);
  const server = new URL(found).origin;
  const { context, page, faults } = await tab(chromium, { server });
  await page.goto(found);
  await page.locator(".fresh", { hasText: /bundle of \d{4}-\d\d-\d\d \d\d:\d\d UTC/ }).waitFor({ timeout: SOON });
  for (const hash of ["#/map", "#/clusters", "#/services", "#/services/web.shop.svc.cluster.local", "#/proxies", "#/timeline", "#/timeline/rollout", "#/trust"]) {
    await turn(page, hash);
    assert.equal(await page.getByText("This can't be shown").count(), 0, hash);
    seen[hash] = await words(page.locator("main"));
  }
  assert.match(seen["#/map"], /east.*west/);
  assert.match(seen["#/services/web.shop.svc.cluster.local"], /via 172\.30\.0\.\d+:15443|direct/);
  // All ages refer to the time of the bundle.
  await turn(page, "#/clusters");
  const before = await words(page.locator("main"));
  await new Promise((resolve) => setTimeout(resolve, 2500));
  assert.equal(await words(page.locator("main")), before);
  assert.deepEqual(faults, []);
  await context.close();
});

test("traffic that Prometheus has measured is shown on lanes and services", async () => {
  const world = calm(Date.now());
  const [from, to] = world["/debug/networks"].filter((row) => row.clusters.length > 0).map((row) => row.clusters[0]);
  const measured = { rate: 12, errors: 0.6, p95: 31.4 };
  world["/debug/traffic"] = { enabled: true, window: "2m", clusters: [{ source: from, destination: to, ...measured }], services: [{ hostname: REVIEWS, ...measured }] };
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => world });
  await open(page, demo.server, "#/map");
  await until(async () => /12\/s, 5 % errors, 31 ms/.test((await page.locator(".lane-traffic").allTextContents()).join()), SOON, "traffic on a lane");
  await page.locator("summary", { hasText: "The map as tables" }).click();
  const row = page.locator("table", { hasText: "Traffic of the last 2m" }).locator("tbody tr");
  assert.match(await words(row.first()), new RegExp(`${from}.*${to}.*12/s.*5 %.*31 ms`));
  await turn(page, "#/services");
  assert.match(await words(page.locator("tbody tr", { hasText: REVIEWS })), /12\/s 5 % 31 ms/);
  await turn(page, `#/services/${REVIEWS}`);
  assert.match(await words(page.locator("main")), /Last 2m: 12\/s, 5 % errors, 31 ms/);
  // Without an answer of Prometheus the page shows the reason, and everything else as usual.
  world["/debug/traffic"] = { enabled: true, window: "2m", problem: "Prometheus at http://p:9090/: connection refused" };
  await page.reload();
  await page.getByText("connection refused").waitFor({ timeout: SOON });
  assert.deepEqual(faults, []);
  await context.close();
});

test("empty mesh shows the next steps", async () => {
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session, world: empty });
  await open(page, demo.server, "#/map");
  assert.match(await words(page.locator("main")), /No clusters yet.*strait cluster add CONTEXT/);
  await context.close();
});

test("response of an incompatible version is reported and affects no other page", async () => {
  const world = () => ({ ...calm(Date.now()), "/debug/events": { changes: [] }, "/debug/services": [{ hostname: "a.shop.svc.cluster.local" }] });
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world });
  for (const hash of ["#/timeline", "#/services"]) {
    await page.goto(`${demo.server}/${hash}`);
    await page.getByText("may come from a different version").waitFor({ timeout: SOON });
    assert.deepEqual(await axe(page), []);
  }
  await open(page, demo.server, "#/clusters");
  assert.match(await words(page.locator("main")), /prod-eu/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("invalid names are shown as text", async () => {
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session, world: () => hostile(Date.now()) });
  await open(page, demo.server, "#/clusters");
  const text = await words(page.locator("main"));
  assert.ok(text.includes(HOSTILE[0]) && text.includes(HOSTILE[1]), text);
  // The texts equal those of the CLI.
  assert.ok(text.includes("\\u{202e}dnah-tfel") && text.includes("a\\u{7}b\\u{a}c"), text);
  assert.equal(await page.locator("main img, main script, a[href^='javascript']").count(), 0);
  await context.close();
});

test("page is readable with a hundred clusters and usable with two thousand", async () => {
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => world });
  let world = crowd(Date.now());
  await open(page, demo.server, "#/map");
  // Clusters with problems are drawn individually, the others are counted.
  const drawn = await page.locator(".box .name").allInnerTexts();
  assert.deepEqual(drawn.sort(), ["c003-region-03", "c017-region-07", "c044-region-04"]);
  assert.match(await words(page.locator(".chips").first()), /95 live/);
  assert.deepEqual(await axe(page), []);
  world = crowd(Date.now(), 2000, 200);
  const began = Date.now();
  await page.reload();
  await page.waitForFunction(() => document.body.innerText.replaceAll("\u202f", "").includes("1995 live"), undefined, { timeout: SOON });
  // This includes reading 30 MB of responses, on a machine with other load.
  assert.ok(Date.now() - began < 15_000, `${Date.now() - began} ms`);
  assert.deepEqual(faults, []);
  await context.close();
});

/**
 * Returns the shortest of several measured durations. Repeats the measurement until it is at most `wanted` milliseconds, for at most three
 * minutes, because other programs use the machine too.
 */
async function best(wanted, measure) {
  const end = Date.now() + 180_000;
  let least = Infinity;
  while (least > wanted && Date.now() < end) least = Math.min(least, await measure());
  return least;
}

test("page loads within 300 ms, and ten thousand proxies within a second", async () => {
  const now = Date.now();
  const many = { ...crowd(now, 20, 4), "/debug/proxies": crowd(now, 500, 4)["/debug/proxies"] };
  assert.equal(many["/debug/proxies"].length, 10_000);
  // Without the interception of requests in other tests, which takes longer than the requests themselves.
  const direct = await chromium.newContext({ storageState: session });
  const first = await direct.newPage();
  const painted = await best(300, async () => {
    await first.goto("about:blank");
    await open(first, demo.server, "#/map");
    return first.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  });
  assert.ok(painted <= 300, `${painted} ms to the first paint`);
  await direct.close();
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => many });
  await open(page, demo.server, "#/map");
  await page.waitForFunction(() => document.body.innerText.replaceAll("\u202f", "").includes("10000 proxies"), undefined, { timeout: SOON });
  const drawn = await best(1000, async () => {
    // Also if the proxies are already loaded.
    await turn(page, "#/proxies/1");
    // From the click to the second frame after it, in which everything is painted.
    const took = await page.evaluate(() => new Promise((resolve) => {
      const begun = performance.now();
      location.hash = "#/proxies";
      addEventListener("hashchange", () => requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begun))), { once: true });
    }));
    assert.equal(await page.locator(".square").count() > 0 && (await page.locator("main").getAttribute("data-page")), "proxies");
    return took;
  });
  assert.ok(drawn <= 1000, `${drawn} ms for ten thousand proxies`);
  assert.deepEqual(faults, []);
  await context.close();
});

test("frame that is shown before the scripts run equals the drawn one", async () => {
  const links = (page) => page.locator("header a").evaluateAll((all) => all.map((link) => [link.getAttribute("href"), link.textContent.trim()]));
  const without = await chromium.newContext({ javaScriptEnabled: false });
  const frame = await without.newPage();
  await frame.goto(demo.server);
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session });
  await open(page, demo.server, "#/map");
  assert.deepEqual(await links(frame), await links(page));
  await without.close();
  await context.close();
});

test("without a session the page shows only how to sign in", async () => {
  const refused = (fault) => fault.includes("401");
  for (const [colorScheme, width, height] of [["light", 1280, 720], ["dark", 390, 844]]) {
    const { context, page, faults } = await tab(chromium, { server: demo.server, colorScheme, width, height, expected: refused });
    await page.goto(`${demo.server}/`);
    await page.getByText("This page needs a session").waitFor({ timeout: SOON });
    assert.match(await words(page.locator("main")), /strait ui/);
    assert.deepEqual(await axe(page), []);
    assert.deepEqual(await tooWide(page), []);
    assert.equal((await context.cookies()).length, 0);
    // A used link does not open a session.
    const link = await demo.link();
    const other = await tab(chromium, { server: demo.server, expected: refused });
    await other.page.goto(link);
    await other.page.locator(".sea").waitFor({ timeout: SOON });
    await page.goto(link);
    await page.getByText("This page needs a session").waitFor({ timeout: SOON });
    // A new link leads to the requested page, and the code is removed from the address.
    await page.goto(`${await demo.link()}#/clusters`);
    await page.getByRole("link", { name: "west", exact: true }).first().waitFor({ timeout: SOON });
    assert.equal(page.url(), `${demo.server}/#/clusters`);
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.deepEqual([...faults, ...other.faults], []);
    await other.context.close();
    await context.close();
  }
});

/**
 * Opens a tab whose clock the test controls and that receives no events, so that only the clock decides when the page polls. `polls` counts
 * the requests for the clusters.
 */
async function tabWithFixedClock() {
  const opened = await tab(chromium, { server: demo.server, storageState: session });
  await opened.context.route("**/api/changes", (route) => route.fulfill({ status: 503, json: { error: "enough pages wait for changes already" } }));
  await opened.page.clock.install();
  await opened.page.clock.pauseAt(Date.now() + 1000);
  const polls = { count: 0 };
  opened.page.on("request", (request) => {
    if (request.url().endsWith("/debug/clusters")) polls.count += 1;
  });
  return { ...opened, polls, passes: (seconds) => opened.page.clock.runFor(seconds * 1000) };
}

/** Delays all responses until the returned function is called. */
async function holding(context) {
  let release;
  const held = new Promise((resolve) => {
    release = resolve;
  });
  await context.route("**/debug/**", async (route) => {
    await held;
    return route.fallback();
  });
  return release;
}

test("loading, failing, unready and outdated data are distinguished", async () => {
  const { context, page, passes } = await tabWithFixedClock();
  const release = await holding(context);
  // The accessibility checks use timers, so the clock must run.
  await page.clock.resume();
  await page.goto(`${demo.server}/#/map`);
  await page.getByText("Asking the control plane").waitFor({ timeout: SOON });
  assert.deepEqual(await axe(page), []);
  release();
  await page.locator(".sea").waitFor({ timeout: SOON });
  await context.unroute("**/debug/**");
  await context.route("**/debug/**", (route) => route.abort());
  // Regardless of the duration of the first response.
  await page.clock.fastForward(60_000);
  await page.locator(".fresh", { hasText: /no answer, data from 1m/ }).waitFor({ timeout: SOON });
  assert.equal(await page.locator(".sea").count(), 1, "the previous data is still shown");
  assert.deepEqual(await axe(page), []);
  await context.unroute("**/debug/**");
  await context.route("**/debug/networks", (route) => route.fulfill({ status: 503, json: { error: "the mesh is not complete yet; waiting for cluster west" } }));
  await page.reload();
  await page.getByText("the mesh is not complete yet; waiting for cluster west").waitFor({ timeout: SOON });
  assert.deepEqual(await axe(page), []);
  await context.close();
});

test("page polls if the limit of listening pages is reached", async () => {
  const { context, page, polls, passes } = await tabWithFixedClock();
  await open(page, demo.server, "#/clusters");
  await page.locator(".fresh", { hasText: "up to date" }).waitFor({ timeout: SOON });
  assert.equal(polls.count, 1);
  await passes(9);
  assert.equal(polls.count, 1, "not before ten seconds have passed");
  await passes(1);
  await until(() => polls.count === 2, SOON, "polled without an event");
  await context.close();
});

test("slow response does not delay the next request beyond a minute", async () => {
  const { context, page, polls, passes } = await tabWithFixedClock();
  const release = await holding(context);
  await page.goto(`${demo.server}/#/clusters`);
  await page.getByText("Asking the control plane").waitFor({ timeout: SOON });
  await passes(8);
  release();
  await page.locator(".fresh", { hasText: "up to date" }).waitFor({ timeout: SOON });
  const before = polls.count;
  await passes(9);
  assert.equal(polls.count, before, "slow responses are requested less often");
  await passes(52);
  await until(() => polls.count > before, SOON, "polled again");
  await context.close();
});

test("page polls within two seconds after its event stream ends", async () => {
  const { context, page, polls, passes } = await tabWithFixedClock();
  await context.unroute("**/api/changes");
  let streams = 0;
  // A server that starts the stream and ends it, and is unreachable afterwards.
  await context.route("**/api/changes", (route) => {
    streams += 1;
    return streams > 1 ? route.abort() : route.fulfill({ contentType: "text/event-stream", body: "retry: 600000\nevent: change\ndata: {}\n\n" });
  });
  await context.route("**/debug/**", (route) => (polls.count > 1 ? route.abort() : route.fallback()));
  await page.addInitScript(() => {
    const Source = EventSource;
    window.EventSource = class extends Source {
      constructor(path) {
        super(path);
        this.addEventListener("error", () => {
          window.broke = true;
        });
      }
    };
  });
  await open(page, demo.server, "#/clusters");
  await page.waitForFunction(() => window.broke, undefined, { timeout: SOON });
  assert.equal(polls.count, 1);
  await passes(2);
  await page.locator(".fresh", { hasText: "no answer" }).waitFor({ timeout: SOON });
  await context.close();
});

test("page and commands show equal facts", async () => {
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session });
  const outputs = await compareWithCommands(page, demo, "client.shop@east");
  assert.equal(outputs.clusters.length, 3);
  await turn(page, "#/map");
  await until(async () => /Nothing needs a look/.test(await words(page.locator(".panel"))), SOON, "nothing needs a look");
  const { problems } = JSON.parse(await demo.strait("status", "-o", "json"));
  assert.deepEqual(problems, [], "the demo's mesh is well");
  for (const service of outputs.services) {
    await turn(page, `#/services/${service.hostname}`);
    assert.ok((await page.locator(".flow-picture, .notice").count()) > 0);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test("everything is reachable by keyboard, and reloading restores the state", async () => {
  const { context, page, faults } = await tab(chromium, { server: demo.server, storageState: session, world: () => failure(Date.now()) });
  await open(page, demo.server, "#/map");
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute("aria-label"));
  const tabTo = async (name) => {
    for (let presses = 0; presses < 80; presses += 1) {
      await page.keyboard.press("Tab");
      if ((await focused())?.includes(name)) return;
    }
    assert.fail(`Tab never came to ${name}`);
  };
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the content");
  await tabTo("prod-ap");
  while (!(await page.evaluate(() => document.activeElement?.classList.contains("box")))) await tabTo("prod-ap");
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "Cluster prod-ap" }).waitFor({ timeout: SOON });
  assert.match(await words(page.locator(".panel")), /stale.*STR0301: connect 198\.51\.100\.9:6443: connection refused/);
  await page.reload();
  await page.locator("h1", { hasText: "Cluster prod-ap" }).waitFor({ timeout: SOON });
  // All squares are one tab stop; arrow keys move between them.
  await turn(page, "#/proxies");
  await tabTo("cart-3.shop: rejecting");
  await page.keyboard.press("ArrowRight");
  assert.match((await page.evaluate(() => document.activeElement?.getAttribute("aria-label"))) ?? "", /^cart-0\.shop: in sync$/);
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("Enter");
  await page.getByText("malformed IP address: fe80::1%eth0").waitFor({ timeout: SOON });
  // Sorting, filters and colors are in the address or are stored.
  await turn(page, "#/clusters");
  await page.getByRole("button", { name: "Endpoints" }).press("Enter");
  const order = () => page.locator("tbody th").allInnerTexts();
  await until(async () => (await order())[0] === "lab", SOON, "sorted by endpoints");
  await page.getByLabel("Find").pressSequentially("eu-west");
  await until(async () => (await order()).join() === "stage-eu,prod-eu", SOON, "filtered");
  assert.match(page.url(), /#\/clusters\?filter=eu-west$/);
  await page.reload();
  await until(async () => (await order()).sort().join() === "prod-eu,stage-eu", SOON, "filtered after reloading");
  await page.getByRole("button", { name: /Colours: auto/ }).press("Enter");
  await page.getByRole("button", { name: /Colours: light/ }).press("Enter");
  await until(() => page.evaluate(() => document.documentElement.dataset.theme === "dark"), SOON, "dark");
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  assert.deepEqual(faults, []);
  await context.close();
});

testConcurrently("a cluster whose API server goes away shows within 25 s, and a process with another CA asks for a new session", async (t) => {
  const place = folder(t);
  mkdirSync(join(place, "state"), { mode: 0o700 });
  const simulation = await start("strait-sim", ["--clusters", "3", "--networks", "2", "--services", "6", "--endpoints", "3", "--pods", "--out", place],
    (line) => (line.startsWith("{") ? JSON.parse(line).control : undefined));
  t.after(() => simulation.stop());
  const order = (verb, body) => fetch(`http://${simulation.found}/v1/${verb}`, { method: "POST", body: JSON.stringify(body) });
  let plane = await ControlPlane.serve(join(place, "secrets"), join(place, "state"));
  t.after(() => plane.stop());
  const { context, page } = await tab(chromium, { server: plane.server });
  await page.goto(await plane.link());
  const box = page.locator(".box", { hasText: "c2" });
  const state = (wanted, limit) => until(async () => (await box.locator(".state").innerText().catch(() => "")) === wanted, limit, `c2 is ${wanted}`);
  await state("live", SOON);
  await order("kill", { cluster: "c2" });
  await state("stale", 25_000);
  assert.match(await words(box), /heard \d+s ago/);
  assert.match(await words(page.locator(".panel")), /Cluster c2 stale: STR0301/);
  await order("start", { cluster: "c2" });
  await state("live", 25_000);
  // The page stays open during a restart. Its session continues, because its key comes from the CA.
  const address = new URL(plane.server).host;
  const unanswered = page.locator(".fresh", { hasText: "no answer" });
  await plane.stop();
  await unanswered.waitFor({ timeout: SOON });
  plane = await ControlPlane.serve(join(place, "secrets"), join(place, "state"), address);
  await unanswered.waitFor({ state: "hidden", timeout: SOON });
  await state("live", SOON);
  // A process with another CA ends the session. The page continues after a sign-in in any tab.
  await plane.stop();
  await unanswered.waitFor({ timeout: SOON });
  mkdirSync(join(place, "other state"), { mode: 0o700 });
  plane = await ControlPlane.serve(join(place, "secrets"), join(place, "other state"), address);
  await page.getByText("This page needs a session").waitFor({ timeout: SOON });
  const other = await context.newPage();
  await other.goto(await plane.link());
  await state("live", SOON);
  await context.close();
});

test("progress of a rollout is shown with the texts of the commands", async (t) => {
  const place = folder(t);
  const [secrets, state, ca] = ["secrets", "state", "ca"].map((name) => join(place, name));
  mkdirSync(state, { mode: 0o700 });
  const simulation = await start("strait-sim", ["--clusters", "1", "--services", "4", "--endpoints", "2", "--pods", "--out", place], (line) => (line.startsWith("{") ? true : undefined));
  t.after(() => simulation.stop());
  const policy = join(place, "policy.yaml");
  writeFileSync(policy, "apiVersion: strait.dev/v1\nkind: Policy\nrollout: {steps: [40%, 80%, 100%], every: 1h, stopAt: {refused: 1000}}\n");
  await command("certs", "init", ca);
  const plane = await ControlPlane.serve(secrets, state, "127.0.0.1:0", ["--policy", policy, "--ca-dir", ca]);
  t.after(() => plane.stop());
  const json = async (...words) => JSON.parse(await plane.strait(...words, "-o", "json"));
  const load = run("xdsload", ["--server", plane.xds, "--proxies", "20", "--ca-dir", ca, "--duration", "600"]);
  t.after(() => load.stop());
  await until(async () => (await json("proxy", "list")).length === 20, SOON, "twenty proxies");
  const host = (await json("service", "list"))[0].hostname;
  const rule = (connectTimeout) => writeFileSync(join(secrets, "rule.json"), JSON.stringify({
    apiVersion: "networking.istio.io/v1", kind: "DestinationRule", metadata: { name: "let-out", namespace: host.split(".")[1] },
    spec: { host, trafficPolicy: { connectionPool: { tcp: { connectTimeout } } } },
  }));
  const { context, page, faults } = await tab(chromium, { server: plane.server });
  await page.goto(await plane.link());
  await turn(page, "#/timeline/rollout");
  assert.match(await words(page.locator("main")), /No rollout is running\./);
  // Changes arrive as events: in this state, the page polls only once a minute.
  const TOLD = SOON;
  rule("2s");
  await page.locator("h2", { hasText: "A change is rolled out to 40% of proxies" }).waitFor({ timeout: TOLD });
  const told = async () => {
    const { running, plan } = await json("history", "rollout");
    const text = await words(page.locator("main"));
    for (const fact of [running.configuration.slice(0, 12), running.settled.slice(0, 12), `Step ${running.step} of ${running.plan.steps.length}`, `Rolled out to ${running.proxies} of ${running.connected} proxies`,
      `${running.refused}; the rollout stops at ${plan.stopAt.refused}`, `to ${running.plan.steps[running.step]}% in`]) assert.ok(text.includes(fact), `${text}: ${fact}`);
    const rows = await page.locator("table", { hasText: "Proxies of the share" }).locator("tbody tr").allInnerTexts();
    assert.equal(rows.length, running.share.length);
    for (const id of running.share) assert.ok(rows.some((row) => row.includes(id)), id);
    return running;
  };
  const running = await told();
  assert.ok(running.proxies > 0 && running.proxies < 20, `${running.proxies} of 20`);
  await turn(page, "#/map");
  await page.locator(".chip", { hasText: `rollout at 40%: ${running.proxies} of 20 proxies` }).waitFor({ timeout: TOLD });
  await plane.strait("history", "rollout", "--abort", "--yes", "--by", "ann", "--reason", "5xx of the checkout");
  await page.locator(".troubles li", { hasText: "by ann: 5xx of the checkout; 1 change waits" }).waitFor({ timeout: TOLD });
  assert.equal(await page.locator(".chip", { hasText: "rollout" }).count(), 0);
  // The held configuration is shown instead, also on the timeline.
  await turn(page, "#/timeline");
  const { held } = await json("status");
  const card = await words(page.locator(".rollout"));
  for (const fact of [held.configuration.slice(0, 12), `By ${held.by}`, `Why ${held.reason}`, `Waiting ${held.waiting} change`]) assert.ok(card.includes(fact), `${card}: ${fact}`);
  await plane.strait("history", "release", "--yes");
  await page.locator(".rollout", { hasText: "A change is rolled out to 40% of proxies" }).waitFor({ timeout: TOLD });
  await plane.strait("history", "rollout", "--promote", "--yes");
  await until(async () => (await page.locator(".rollout").count()) === 0, TOLD, "all have it");
  assert.deepEqual(faults, []);
  await context.close();
});

/**
 * Failures that the test causes and reverts one after another in a mesh of three simulated clusters, with the text on the map and the command
 * that is shown after one click.
 */
const REAL = [
  { name: "a credential that is not accepted", fact: /^Cluster c3 authFailed: STR0304/, code: "STR0304", mend: "strait cluster rotate c3",
    make: async ({ order }) => {
      // Open watches continue until they end.
      await order("unauthorized", { cluster: "c3" });
      await order("kill", { cluster: "c3" });
      await order("start", { cluster: "c3" });
    },
    undo: ({ order }) => order("unauthorized", { cluster: "c3", on: false }) },
  { name: "one address twice in a network", fact: /^Cluster c2 \d+ addresses of its pods .* STR0414/, code: "STR0414", mend: "strait network join CONTEXT --network NAME",
    make: ({ secret }) => secret("c2", "n1"), undo: ({ secret }) => secret("c2") },
  { name: "a mesh config that can't be read", fact: /^Mesh config STR0110: .*outboundTrafficPolicy/, code: "STR0110", mend: "strait check mesh",
    make: ({ write }) => write("mesh.yaml", "outboundTrafficPolicy: 7\n"), undo: ({ write }) => write("mesh.yaml", "{}\n") },
  { name: "a policy that can't be used", fact: /^Policy STR0601: .*exprt/, code: "STR0601", mend: "strait policy check FILE",
    make: ({ write }) => write("policy.yaml", `${POLICY}exprt: 7\n`), undo: ({ write }) => write("policy.yaml", POLICY) },
  { name: "a policy object that can't be read", fact: /^AuthorizationPolicy shop\/web STR0820: (refused|partly active): spec.rules/, code: "STR0820", mend: "strait policy status [NAMESPACE/]NAME",
    make: ({ write }) => write("secrets/web.json", JSON.stringify({
      apiVersion: "security.istio.io/v1", kind: "AuthorizationPolicy", metadata: { name: "web", namespace: "shop" }, spec: { rules: 7 } })),
    undo: ({ remove }) => remove("secrets/web.json") },
  { name: "a certificate that can't be used", fact: /^Certificates STR070[23]: /, code: "STR0702", mend: "openssl x509 -in FILE -text",
    make: ({ write }) => write("tls/cert-chain.pem", "no certificate\n"), undo: ({ write, certificate }) => write("tls/cert-chain.pem", certificate) },
  { name: "a network without a gateway", fact: /^Network n2 no gateway/, code: "STR0401", mend: "strait network join CONTEXT --network NAME",
    make: ({ order }) => order("gateway", { cluster: "c2", on: false }), undo: ({ order }) => order("gateway", { cluster: "c2" }) },
];
const POLICY = "apiVersion: strait.dev/v1\nkind: Policy\n";

testConcurrently("failures that are made for real show on the map, and go from it", async (t) => {
  const place = folder(t);
  mkdirSync(join(place, "state"), { mode: 0o700 });
  const simulation = await start("strait-sim", ["--clusters", "3", "--networks", "2", "--services", "6", "--endpoints", "3", "--pods", "--out", place],
    (line) => (line.startsWith("{") ? JSON.parse(line).control : undefined));
  t.after(() => simulation.stop());
  await command("certs", "init", join(place, "ca"));
  await command("certs", "issue", "--ca-dir", join(place, "ca"), "--namespace", "strait-system", "--service-account", "strait", "--out", join(place, "tls"));
  // Replaces the file atomically, like editors and the kubelet.
  const write = (name, text) => {
    writeFileSync(join(place, `${name}.new`), text);
    renameSync(join(place, `${name}.new`), join(place, name));
  };
  write("mesh.yaml", "{}\n");
  write("policy.yaml", POLICY);
  const secrets = Object.fromEntries(["c2", "c3"].map((id) => [id, readFileSync(join(place, `secrets/${id}.yaml`), "utf8")]));
  const it = {
    write, remove: (name) => rmSync(join(place, name)), certificate: readFileSync(join(place, "tls/cert-chain.pem"), "utf8"),
    order: async (verb, body) => {
      const answer = await fetch(`http://${simulation.found}/v1/${verb}`, { method: "POST", body: JSON.stringify(body) });
      assert.ok(answer.ok, `${verb}: ${await answer.text()}`);
    },
    // With a network that the Secret sets, or with the previous one.
    secret: (id, network) => {
      const secret = JSON.parse(secrets[id]);
      if (network) secret.metadata.annotations = { ...secret.metadata.annotations, "strait.dev/network": network };
      write(`secrets/${id}.yaml`, JSON.stringify(secret));
    },
  };
  const plane = await ControlPlane.serve(join(place, "secrets"), join(place, "state"), "127.0.0.1:0", ["--mesh-config", join(place, "mesh.yaml"), "--policy", join(place, "policy.yaml"),
    "--tls-cert", join(place, "tls/cert-chain.pem"), "--tls-key", join(place, "tls/key.pem"), "--client-ca", join(place, "tls/root-cert.pem")]);
  t.after(() => plane.stop());
  const { context, page, faults } = await tab(chromium, { server: plane.server });
  await page.goto(await plane.link());
  const rows = async () => Promise.all((await page.locator(".troubles li").all()).map((row) => words(row).catch(() => "")));
  for (const { name, fact, code, mend, make, undo } of REAL) {
    await turn(page, "#/map");
    await page.getByText("Nothing needs a look").waitFor({ timeout: SOON });
    await make(it);
    await until(async () => (await rows()).some((row) => fact.test(row)), 25_000, async () => `${name}: ${(await rows()).join(" | ")}`);
    const at = (await rows()).findIndex((row) => fact.test(row));
    await page.locator(".troubles li").nth(at).locator("a, summary").first().click();
    const mended = page.locator(`.mend[data-code=${code}]`).first();
    await mended.waitFor({ timeout: SOON });
    assert.ok((await words(mended)).includes(mend), `${name}: ${await words(mended)}`);
    await undo(it);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

/** The picture in the documentation, and the permitted difference: the share of its squares of 8 by 8 pixels, and the difference of a color. */
const PICTURE = fileURLToPath(new URL("../../docs/images/map.png", import.meta.url));
const DIFFERENT = { share: 0.06, by: 24 };

/** Returns the sizes of two pictures, and the share of their squares that differ. */
async function differing(of, a, b) {
  const page = await of.newPage();
  const url = (png) => `data:image/png;base64,${png.toString("base64")}`;
  const found = await page.evaluate(async ([a, b, by]) => {
    const side = 8;
    const squares = async (url) => {
      const image = new Image();
      image.src = url;
      await image.decode();
      const { width, height } = image;
      const canvas = new OffscreenCanvas(width / side, height / side);
      const context = canvas.getContext("2d");
      context.imageSmoothingQuality = "high";
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      return { size: `${width}x${height}`, data: context.getImageData(0, 0, canvas.width, canvas.height).data };
    };
    const [one, two] = [await squares(a), await squares(b)];
    let count = 0;
    for (let i = 0; i < one.data.length; i += 4) if ([0, 1, 2].some((at) => Math.abs(one.data[i + at] - two.data[i + at]) > by)) count += 1;
    return { sizes: [one.size, two.size], share: count / (one.data.length / 4) };
  }, [url(a), url(b), DIFFERENT.by]);
  await page.close();
  return found;
}

test("picture of the guide equals the drawn map", async () => {
  // The time is fixed, so that all ages are constant.
  const moment = Date.UTC(2026, 10, 26, 9, 30);
  const { context, page } = await tab(chromium, { server: demo.server, storageState: session, height: 704, world: () => world });
  const codes = await (await context.request.get(`${demo.server}/debug/codes`)).json();
  const world = { ...failure(moment), "/debug/codes": codes };
  await page.clock.setFixedTime(moment);
  await open(page, demo.server, "#/map");
  await page.locator(".lane").first().waitFor({ state: "attached", timeout: SOON });
  const drawn = await page.screenshot({ type: "png", animations: "disabled" });
  await context.close();
  if (process.env.STRAIT_PICTURE) writeFileSync(PICTURE, drawn);
  const { sizes, share } = await differing(chromium, readFileSync(PICTURE), drawn);
  assert.ok(sizes[0] === sizes[1] && share < DIFFERENT.share, `${sizes.join(" and ")}, ${(share * 100).toFixed(1)} % differ: tests/page/run --picture replaces it`);
});

describe("at the same time", { concurrency: true }, () => {
  for (const [name, run] of concurrentTests) test(name, run);
});
