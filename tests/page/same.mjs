// Compares the page with the output of commands. Both use the same API, but a running mesh changes between the two requests.

import assert from "node:assert/strict";
import { open, turn, words } from "./rig.mjs";

/** The time for which the two may differ: until the page has received the latest changes. */
const AGREES = 15_000;

/** Repeats a comparison until it succeeds. */
async function agree(compare) {
  const end = Date.now() + AGREES;
  for (;;) {
    try {
      return await compare();
    } catch (fault) {
      if (!(fault instanceof assert.AssertionError) || Date.now() > end) throw fault;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  }
}

/** Compares the content of each page with the `-o json` output of the command. `asker` is the name of a connected proxy. Returns the outputs. */
export async function compareWithCommands(page, plane, asker) {
  const json = async (...command) => JSON.parse(await plane.strait(...command, "-o", "json"));
  await open(page, plane.server, "#/clusters");
  const clusters = await agree(async () => {
    const all = await json("cluster", "list");
    for (const one of all) {
      const row = await words(page.locator("tbody tr", { has: page.getByRole("link", { name: one.id, exact: true }) }));
      for (const fact of [one.network, one.state, one.services, one.endpoints, one.withheld]) assert.ok(row.includes(String(fact)), `${row}: ${fact}`);
    }
    return all;
  });
  await turn(page, "#/map");
  const status = await agree(async () => {
    const all = await json("status");
    const text = await words(page.locator("main"));
    // An agent's own stream subscribes to the table of names only.
    const proxies = all.proxies.filter((one) => Object.keys(one.types).join() !== "nds");
    assert.ok(text.includes(`${proxies.length} prox`), `${text}: ${proxies.length} proxies`);
    for (const one of all.clusters) assert.ok(text.includes(one.id), `${text}: ${one.id}`);
    return all;
  });
  for (const proxy of await json("proxy", "list")) {
    await turn(page, `#/proxies/${proxy.key}`);
    await agree(async () => {
      const text = await words(page.locator("main"));
      // The proxy may have received more since then.
      const now = (await json("proxy", "list")).find((one) => one.key === proxy.key);
      // An agent's own stream subscribes to no clusters.
      for (const fact of [now.id, now.identity, now.network, now.types.cds?.sent ?? ""]) assert.ok(text.includes(fact), `${text}: ${fact}`);
    });
  }
  await turn(page, "#/timeline");
  await agree(async () => {
    const rows = await page.locator("tbody tr").allInnerTexts();
    const changes = await json("events", "--last", "0");
    assert.ok(changes.length > 0 && rows.length === Math.min(changes.length, 100), `${rows.length} of ${changes.length}`);
    for (const [at, change] of changes.toReversed().slice(0, 100).entries()) {
      for (const fact of [change.effect, change.cause?.name ?? "\u2013", change.at.slice(11, 23)]) assert.ok(rows[at].includes(fact), `${rows[at]}: ${fact}`);
    }
  });
  const services = await json("service", "list");
  for (const { hostname } of services) {
    await turn(page, `#/explain?proxy=${encodeURIComponent(asker)}&service=${hostname}`);
    const command = await page.locator("#command").innerText();
    assert.equal(command, `strait explain ${asker} ${hostname}`);
    await agree(async () => {
      const output = await json(...command.split(" ").slice(1));
      const text = await words(page.locator("main"));
      assert.equal(await page.locator(".ladder").count(), output.endpoints.length);
      for (const endpoint of output.endpoints) {
        for (const step of endpoint.steps) assert.ok(text.includes(step.detail), `${hostname}: ${step.detail}`);
      }
      for (const row of output.clusters) assert.ok(text.includes(`${row.ready}/${row.total}`) && text.includes((row.reason ?? "").replaceAll(/\s+/g, " ")), `${text}: ${JSON.stringify(row)}`);
    });
  }
  return { clusters, status, services };
}
