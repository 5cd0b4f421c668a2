// Worlds for tests of the page: responses of the control plane in states that are hard to reproduce.

const MINUTE = 60_000;

/** Returns a time relative to `now`, in RFC 3339. */
const at = (now, offset) => new Date(now + offset).toISOString();

function cluster(now, id, network, more = {}) {
  return {
    id, secret: `strait-system/strait-cluster-${id}`, state: "live", reason: "", network, trustDomain: "cluster.local",
    lastContact: at(now, -1500), services: 40, endpoints: 320, withheld: 0, objects: 900, relists: 0, ...more,
  };
}

function gateway(address, of, more = {}) {
  return { address, port: 15443, hbonePort: 15008, cluster: of, source: "service istio-system/eastwest", ...more };
}

function proxy(now, key, name, of, network, nack) {
  const good = { sent: "e41b09", acked: "e41b09", lastSent: at(now, -9 * MINUTE), lastAcked: at(now, -9 * MINUTE) };
  const bad = { sent: "e41b0a", acked: "e41b08", lastSent: at(now, -2 * MINUTE), lastAcked: at(now, -9 * MINUTE) };
  return {
    key: String(key), id: `sidecar~10.0.0.${key % 250}~${name}~shop.svc.cluster.local`, type: "sidecar", cluster: of, network,
    namespace: "shop", identity: "spiffe://cluster.local/ns/shop/sa/web", verified: true, version: "1.40.0",
    connectedAt: at(now, -240 * MINUTE), protocol: "delta",
    types: { cds: good, eds: nack === "waits" ? bad : nack ? { ...bad, nack: { error: nack, resources: ["outbound|9080||reviews.shop.svc.cluster.local"] } } : good, lds: good, rds: good },
  };
}

const service = (hostname, clusters, more = {}) => ({
  hostname, namespace: "shop", resolution: "ClientSideLB", ports: [{ name: "http", port: 9080, protocol: "HTTP" }],
  clusterVIPs: Object.fromEntries(clusters.map((one, i) => [one, [`10.96.0.${i + 10}`]])), externalAddresses: {},
  serviceAccounts: ["spiffe://cluster.local/ns/shop/sa/reviews"], clusters, conflicts: [], ...more,
});

/** Returns the summary that the control plane would return for a world. */
export function summary(world) {
  const counts = () => ({ connected: 0, refusing: 0, waiting: 0 });
  const proxies = { ...counts(), clusters: Object.create(null), refusals: [] };
  for (const one of world["/debug/proxies"] ?? []) {
    const types = Object.entries(one.types);
    const refused = types.filter(([, entry]) => entry.nack).map(([type, entry]) => [type, entry.nack.error]);
    const waits = types.some(([, entry]) => entry.sent !== entry.acked);
    for (const of of [proxies, (proxies.clusters[one.cluster] ??= counts())]) {
      of.connected += 1;
      if (refused.length > 0) of.refusing += 1;
      else if (waits) of.waiting += 1;
    }
    if (refused.length > 0 && proxies.refusals.length < 40) proxies.refusals.push({ key: one.key, id: one.id, cluster: one.cluster, types: Object.fromEntries(refused) });
  }
  const { problems = [], held = null } = world["/debug/mesh"] ?? {};
  const faulty = (world["/debug/config"] ?? []).filter((one) => one.state === "refused");
  const { running = null, lost = null } = world["/debug/rollout"] ?? {};
  return {
    proxies, mesh: { problems, held, holdLost: null }, policy: { problem: world["/debug/policy"]?.problem ?? null }, sources: world["/debug/sources"] ?? [],
    certificates: world["/debug/certificates"] ?? { problem: null },
    objects: { faulty: faulty.length, first: faulty.map(({ kind, namespace, name, state, reasons }) => ({ kind, namespace, name, state, ...reasons[0] })) },
    rollout: { running, lost },
  };
}

const STEPS = ["ready", "pod", "export", "network", "gateway", "family", "mtls"];
const DETAILS = ["ready", "pod shop/reviews-1", "visible to namespace shop", "in network eu-west, the proxy is in us-east", "through 203.0.113.9:15443", "the proxy speaks the address family", "takes mTLS"];

/** Returns a change of an object, with the proxies that have acknowledged it. */
function change(now, seq, cause, effect, more = {}) {
  return {
    seq, at: at(now, -(40 - seq) * 7_000), cause, otherCauses: [], moreCauses: 0, effect, version: seq + 1, proxies: 88, acknowledged: 88,
    refused: 0, waiting: 0, publishedMs: 0.4 + seq / 50, ms: 2 + ((seq * 37) % 40) / 3, ...more,
  };
}

/** Returns a change with the steps of its proxies: the second rejects it, and the third has not responded yet. */
function steps(one, id) {
  const step = (i) => ({
    proxy: id(i), cluster: "prod-eu", sentMs: i === 3 ? null : one.publishedMs + i / 10, answeredMs: i === 2 ? null : one.ms - 0.5 + i / 10,
    answer: ["acknowledged", "refused", "waiting"][i] ?? "acknowledged",
  });
  return { ...one, refusals: [{ proxy: id(1), error: "malformed IP address: fe80::1%eth0" }], steps: Array.from({ length: 40 }, (_, i) => step(i)) };
}

/** Returns the decisions about one endpoint, up to the first negative one. */
function endpoint(address, of, network, verdict, failing, detail) {
  const steps = STEPS.map((step, i) => ({ step, ok: true, detail: DETAILS[i] })).slice(0, failing === undefined ? 7 : failing);
  if (failing !== undefined) steps.push({ step: STEPS[failing], ok: false, detail });
  return { address, port: 8080, cluster: of, network, verdict, ...(verdict === "gateway" ? { via: ["203.0.113.9:15443"] } : {}), steps };
}

const REVIEWS = "reviews.shop.svc.cluster.local";

const CONFIGURATION = { next: "9f31c0aa52b7447d8e6b2f10c4d5a687", settled: "41d88c1f07e94b6a9a3c5e2d7b8f6012" };
const PLAN = { steps: [5, 25, 100], everySeconds: 600, stopAt: { refused: 3, lostEndpoints: 20 } };
const node = (i) => `sidecar~10.0.0.${i}~web-${i - 1}.shop~shop.svc.cluster.local`;

/** Returns a rollout to some of the proxies, one of which has rejected the change. */
function runningRollout(now) {
  return {
    plan: PLAN, stopped: null, stoppedTotal: 1, completedTotal: 4, lost: null,
    running: {
      configuration: CONFIGURATION.next, settled: CONFIGURATION.settled, begun: at(now, -4 * MINUTE), plan: PLAN, step: 1, percent: 5,
      stepSince: at(now, -3 * MINUTE), nextStepAt: at(now, 7 * MINUTE), nextStepInSeconds: 420, proxies: 5, connected: 97,
      share: [node(2), node(9), node(17), node(23), node(30)], refused: 1,
      refusals: [{ proxy: node(9), error: "Error adding/updating listener(s) 0.0.0.0_80: no such filter" }], durable: true,
    },
  };
}

/** Reason of a rollout that stopped after too many rejections. */
const REFUSED = "rollout of 9f31c0aa52b7 stopped at 5%: 3 proxies rejected the change, among them " + `${node(9)}: no such filter`;
const stoppedAt = (now) => ({
  held: { configuration: CONFIGURATION.settled, since: at(now, -2 * MINUTE), by: "strait roll-out", reason: REFUSED, withAccess: false, byRollout: true, durable: true, waiting: 2 },
  rollout: {
    plan: PLAN, running: null, stoppedTotal: 2, completedTotal: 4, lost: null,
    stopped: { at: at(now, -2 * MINUTE), configuration: CONFIGURATION.settled, reason: REFUSED },
  },
});

/** Returns a healthy world in which an operator or a rollout holds the configuration. */
export function stopped(now) {
  const { held, rollout } = stoppedAt(now);
  return { ...calm(now), "/debug/mesh": { problems: [], held, holdLost: null }, "/debug/rollout": rollout };
}

/** Returns changes: one is rejected, one is not acknowledged by all proxies yet, and all others are. */
function changes(now) {
  const more = {
    37: { acknowledged: 87, refused: 1 },
    39: { acknowledged: 60, waiting: 28, otherCauses: [{ cluster: "hub", kind: "Pod", namespace: "shop", name: "reviews-2" }] },
  };
  const cause = (i) => ({ cluster: i % 3 ? "prod-eu" : "hub", kind: "EndpointSlice", namespace: "shop", name: `reviews-${i % 4}` });
  return Array.from({ length: 40 }, (_, i) => change(now, i, cause(i), `${REVIEWS}: ${i % 5} -> ${(i + 1) % 5} endpoints`, more[i]));
}

/** Returns a world with several problems at the same time. */
export function failure(now) {
  const stale = "STR0301: connect 198.51.100.9:6443: connection refused, 61 tries in 14m";
  return {
    "/debug/clusters": [
      cluster(now, "hub", "us-east", { secret: null, endpoints: 1022, services: 148 }),
      cluster(now, "lab", "us-east", { state: "quarantined", reason: "STR0308: contact was lost 5 times in 2m; asked again in 40s", since: at(now, -4 * MINUTE), endpoints: 31 }),
      cluster(now, "prod-ap", "ap-sg", { state: "stale", reason: stale, since: at(now, -14 * MINUTE), lastContact: at(now, -14 * MINUTE), endpoints: 1410, withheld: 1410, withheldBy: { STR0402: 1410 }, credential: { expires: at(now, 71 * 60 * MINUTE), endsSoon: true, renewsItself: false } }),
      cluster(now, "prod-eu", "eu-west", { endpoints: 1904, services: 212, credential: { expires: at(now, 29 * 1440 * MINUTE), endsSoon: false, renewsItself: true } }),
      cluster(now, "stage-eu", "eu-west", { endpoints: 260, credential: { expires: at(now, 12 * 1440 * MINUTE), endsSoon: false, renewsItself: false } }),
    ],
    "/debug/networks": [
      { network: "ap-sg", clusters: ["prod-ap"], gateways: [], pending: [{ cluster: "prod-ap", source: "service istio-system/eastwest", reason: "the Service has no external address yet" }] },
      { network: "eu-west", clusters: ["prod-eu", "stage-eu"], gateways: [gateway("203.0.113.9", "prod-eu", { hostname: "gw.eu.example.org", ttlSeconds: 60 }), gateway("2001:db8::9", "prod-eu", { dead: true })] },
      { network: "us-east", clusters: ["hub", "lab"], gateways: [gateway("203.0.113.7", "hub")] },
    ],
    "/debug/proxies": [
      ...Array.from({ length: 36 }, (_, i) => proxy(now, i + 1, `web-${i}.shop`, "hub", "us-east", i === 7 ? "waits" : undefined)),
      ...Array.from({ length: 52 }, (_, i) => proxy(now, i + 100, `cart-${i}.shop`, "prod-eu", "eu-west", i === 3 ? "malformed IP address: fe80::1%eth0" : undefined)),
      ...Array.from({ length: 9 }, (_, i) => proxy(now, i + 200, `batch-${i}.jobs`, "lab", "us-east")),
    ],
    "/debug/events": changes(now),
    "/debug/events?seq=37": steps(changes(now)[37], node),
    "/debug/mesh": { problems: [{ code: "STR0110", text: "meshConfig: outboundTrafficPolicy is no object" }] },
    "/debug/policy": { problem: "line 3: unknown field \"exprt\"", unknownClusters: [], preferences: [] },
    "/debug/rollout": runningRollout(now),
    "/debug/sources": [{ name: "consul-dc1", kind: "consul", state: "stale", reason: "no answer for 2m", code: null, warnings: [] }],
    "/debug/certificates": {
      serving: { expires: at(now, 40 * MINUTE), endsSoon: true }, authority: { expires: at(now, 3100 * 1440 * MINUTE) },
      problem: { code: "STR0703", message: "tls.crt does not belong to tls.key", since: at(now, -30 * MINUTE) },
      rotation: {
        phase: "distribute", number: 1, next: "make sure that all have root 5f0e93c2b7d8, then let it sign",
        roots: [
          { fingerprint: "0c7b1d1f6a1e".padEnd(64, "0"), subject: "O=Strait, CN=root of May", ends: at(now, 3100 * 1440 * MINUTE), step: "signs", since: at(now, -900 * MINUTE), lastCertificateEnds: at(now, 1380 * MINUTE), assumed: false, lacks: [] },
          { fingerprint: "5f0e93c2b7d8".padEnd(64, "0"), subject: "O=Strait, CN=root of November", ends: at(now, 3200 * 1440 * MINUTE), step: "distribute", since: at(now, -9 * MINUTE), lastCertificateEnds: null, assumed: false, lacks: [{ who: "cluster prod-ap", fact: "2 of its 9 namespaces lack it" }] },
        ],
      },
    },
    "/debug/services": [
      service("cart.shop.svc.cluster.local", ["prod-eu", "stage-eu"]),
      service(REVIEWS, ["hub", "lab", "prod-ap", "prod-eu"], { conflicts: [{ field: "ports", winner: "hub", losers: ["lab"] }] }),
    ],
    "/debug/explain": {
      proxy: "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local", hostname: REVIEWS, port: 9080,
      clusters: [
        { cluster: "hub", network: "us-east", ready: 5, total: 6, sent: 5, via: "direct", reason: "1 not ready", code: "STR0420" },
        { cluster: "lab", network: "us-east", ready: 2, total: 2, sent: 0, via: null, reason: "2 withheld: lab may not export namespace shop (policy rule 3)", code: "STR0602" },
        { cluster: "prod-ap", network: "ap-sg", ready: 4, total: 4, sent: 0, via: null, reason: "4 withheld: the network's gateway has no address yet", code: "STR0402" },
        { cluster: "prod-eu", network: "eu-west", ready: 3, total: 3, sent: 3, via: "203.0.113.9:15443", reason: null, code: null },
      ],
      endpoints: [
        endpoint("10.1.0.1", "hub", "us-east", "direct"),
        endpoint("10.1.0.2", "hub", "us-east", "withheld", 0, "the endpoint is unhealthy"),
        endpoint("10.1.0.9", "lab", "us-east", "withheld", 2, "lab may not export namespace shop (policy rule 3)"),
        endpoint("10.2.0.1", "prod-eu", "eu-west", "gateway"),
        endpoint("10.3.0.1", "prod-ap", "ap-sg", "withheld", 4, "network ap-sg has a gateway without an address: service istio-system/eastwest has no external address yet"),
      ],
    },
  };
}

/** Returns a healthy world with three clusters in two networks. */
export function calm(now) {
  return {
    "/debug/clusters": [cluster(now, "hub", "us-east", { secret: null }), cluster(now, "lab", "us-east"), cluster(now, "prod-eu", "eu-west")],
    "/debug/networks": [
      { network: "eu-west", clusters: ["prod-eu"], gateways: [gateway("203.0.113.9", "prod-eu")] },
      { network: "us-east", clusters: ["hub", "lab"], gateways: [gateway("203.0.113.7", "hub")] },
    ],
    "/debug/proxies": Array.from({ length: 4 }, (_, i) => proxy(now, i + 1, `web-${i}.shop`, "hub", "us-east")),
    "/debug/mesh": { problems: [] }, "/debug/policy": { problem: null, unknownClusters: [], preferences: [] }, "/debug/sources": [],
    "/debug/rollout": { plan: null, running: null, stopped: null, stoppedTotal: 0, completedTotal: 0, lost: null },
    "/debug/events": [], "/debug/certificates": { serving: { expires: at(now, 40 * MINUTE), endsSoon: true }, authority: { expires: at(now, 3100 * 1440 * MINUTE) }, problem: null },
    "/debug/services": [service(REVIEWS, ["hub", "prod-eu"])],
    "/debug/explain": {
      proxy: "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local", hostname: REVIEWS, port: 9080,
      clusters: [
        { cluster: "hub", network: "us-east", ready: 1, total: 1, sent: 1, via: "direct", reason: null, code: null },
        { cluster: "prod-eu", network: "eu-west", ready: 1, total: 1, sent: 1, via: "203.0.113.9:15443", reason: null, code: null },
      ],
      endpoints: [endpoint("10.1.0.1", "hub", "us-east", "direct"), endpoint("10.2.0.1", "prod-eu", "eu-west", "gateway")],
    },
  };
}

/**
 * Single failures: the text on the map (`fact`), its position there (`mark`), and the fix that is shown after one click.
 * `mend` is the command or the field to change, `code` the page of `strait help`.
 */
export function failures(now) {
  const member = (id, more) => (world) => Object.assign(world["/debug/clusters"].find((one) => one.id === id), more);
  const network = (name, more) => (world) => Object.assign(world["/debug/networks"].find((one) => one.network === name), more);
  const ago = at(now, -10 * MINUTE);
  return [
    { name: "an unreachable API server", fact: /^Cluster prod-eu stale: STR0301/, mark: ".box.doubtful", code: "STR0301", mend: "curl -k https://HOST:PORT/livez",
      change: member("prod-eu", { state: "stale", reason: "STR0301: connect 198.51.100.9:6443: connection refused", since: ago, lastContact: ago }) },
    { name: "a rejected credential", fact: /^Cluster prod-eu authFailed: STR0304/, mark: ".box.bad", code: "STR0304", mend: "strait cluster rotate prod-eu",
      change: member("prod-eu", { state: "authFailed", reason: "STR0304: answered 401", since: ago, lastContact: ago }) },
    { name: "an invalid certificate of an API server", fact: /^Cluster lab tlsFailed: STR0305/, mark: ".box.bad", code: "STR0305", mend: "openssl s_client -showcerts -connect HOST:PORT",
      change: member("lab", { state: "tlsFailed", reason: "STR0305: certificate expired", since: ago, lastContact: ago }) },
    { name: "another cluster behind a kubeconfig", fact: /^Cluster lab identityChanged: STR0306/, mark: ".box.bad", code: "STR0306", mend: "kubectl -n strait-system annotate secret NAME strait.dev/cluster-uid=UID",
      change: member("lab", { state: "identityChanged", reason: "STR0306: its uid was 9a72 and is 11fe", since: ago, lastContact: ago }) },
    { name: "a flapping API server", fact: /^Cluster lab quarantined: STR0308/, mark: ".box.doubtful", code: "STR0308", mend: "strait cluster get lab",
      change: member("lab", { state: "quarantined", reason: "STR0308: contact was lost 5 times in 2m", since: ago }) },
    { name: "a network without a gateway", fact: /^Network eu-west no gateway/, mark: ".land.bad", code: "STR0401", mend: "strait network join CONTEXT --network NAME",
      change: network("eu-west", { gateways: [] }) },
    { name: "a gateway without an address", fact: /^Network eu-west gateway has no address yet/, mark: ".land.bad", code: "STR0402", mend: "strait network list",
      change: network("eu-west", { gateways: [], pending: [{ cluster: "prod-eu", source: "service istio-system/eastwest", reason: "the Service has no external address yet" }] }) },
    { name: "an unresponsive gateway", fact: /^Network us-east no gateway answers/, mark: ".land.bad", code: "STR0409", mend: "openssl s_client -connect HOST:PORT",
      change: network("us-east", { gateways: [gateway("203.0.113.7", "hub", { dead: true })] }) },
    { name: "withheld endpoints", fact: /^Cluster prod-eu 12 endpoints withheld .* STR0405/, mark: ".box .withheld", code: "STR0405", mend: "strait network list",
      change: member("prod-eu", { withheld: 12, withheldBy: { STR0405: 12 } }) },
    { name: "a duplicate address in a network", fact: /^Cluster lab 3 addresses .* STR0414/, mark: ".box", code: "STR0414", mend: "strait network join CONTEXT --network NAME",
      change: member("lab", { sameAddresses: [{ network: "us-east", cluster: "hub", addresses: 3, first: "10.0.0.4", holder: "hub" }] }) },
    { name: "a token that expires soon", fact: /^Cluster prod-eu its token ends at/, mark: ".box .withheld", code: "STR0316", mend: "strait cluster rotate prod-eu",
      change: member("prod-eu", { credential: { expires: at(now, 60 * MINUTE), endsSoon: true, renewsItself: false } }) },
    { name: "a proxy that rejects a response", fact: /^Proxy web-2.shop refused EDS: malformed/, mark: ".chip", code: "STR0507", mend: "strait proxy get NAME",
      change: (world) => world["/debug/proxies"].splice(2, 1, proxy(now, 3, "web-2.shop", "hub", "us-east", "malformed IP address")) },
    { name: "an unreadable mesh config", fact: /^Mesh config STR0110/, mark: ".troubles .what", code: "STR0110", mend: "strait check mesh",
      change: (world) => Object.assign(world["/debug/mesh"], { problems: [{ code: "STR0110", text: "meshConfig: outboundTrafficPolicy is no object" }] }) },
    { name: "a stopped rollout", fact: /^Configuration STR1091: held for 2m\S* by strait roll-out: .* 3 proxies rejected the change.*2 changes wait/, mark: ".troubles a.bad", code: "STR1091", mend: "strait history release",
      change: (world) => Object.assign(world, { "/debug/mesh": { problems: [], held: stoppedAt(now).held }, "/debug/rollout": stoppedAt(now).rollout }) },
    { name: "a held configuration", fact: /^Configuration STR1070: held for 10m\S* by ann@ops: 5xx; 1 change waits/, mark: ".troubles .what", code: "STR1070", mend: "strait history list",
      change: (world) => Object.assign(world["/debug/mesh"], { held: { ...stoppedAt(now).held, since: ago, by: "ann@ops", reason: "5xx", byRollout: false, waiting: 1 } }) },
    { name: "an unusable certificate", fact: /^Certificates STR0703: tls.crt/, mark: ".troubles .what.bad", code: "STR0703", mend: "openssl pkey -in KEY -pubout",
      change: (world) => Object.assign(world, { "/debug/certificates": { serving: { expires: at(now, 40 * MINUTE), endsSoon: true }, authority: null, problem: { code: "STR0703", message: "tls.crt does not belong to tls.key", since: ago } } }) },
    { name: "an unreadable policy object", fact: /^AuthorizationPolicy shop\/web STR0820: refused: spec.rules/, mark: ".troubles .what.bad", code: "STR0820", mend: "strait policy status [NAMESPACE/]NAME",
      change: (world) => Object.assign(world, { "/debug/config": [{ kind: "AuthorizationPolicy", namespace: "shop", name: "web", state: "refused", reasons: [{ code: "STR0820", path: "spec.rules[0]", text: "no list" }] }] }) },
    { name: "an unusable policy file", fact: /^Policy STR0601/, mark: ".troubles .what", code: "STR0601", mend: "strait policy check FILE",
      change: (world) => Object.assign(world["/debug/policy"], { problem: "line 3: unknown field \"exprt\"" }) },
  ].map(({ change, ...one }) => {
    const world = calm(now);
    change(world);
    return { ...one, world };
  });
}

/** Returns a world with this number of clusters and networks, some of which have problems. */
export function crowd(now, clusters = 100, networks = 10) {
  const name = (i) => `region-${String(i % networks).padStart(2, "0")}`;
  const states = { 3: ["stale", "STR0301: connection refused"], 17: ["authFailed", "STR0304: 401: token expired"], 44: ["quarantined", "STR0308: contact was lost 5 times in 2m"], 71: ["paused", ""], 72: ["draining", "by its Secret's end, 20s left"] };
  const all = Array.from({ length: clusters }, (_, i) => {
    const [state, reason] = states[i] ?? ["live", ""];
    return cluster(now, `c${String(i).padStart(3, "0")}-${name(i)}`, name(i), { state, reason, ...(state === "live" ? {} : { since: at(now, -7 * MINUTE), lastContact: at(now, -7 * MINUTE) }) });
  });
  return {
    "/debug/clusters": all,
    "/debug/networks": Array.from({ length: networks }, (_, i) => ({
      network: name(i), clusters: all.filter((one) => one.network === name(i)).map((one) => one.id),
      gateways: i === 7 ? [] : [gateway(`203.0.113.${(i % 200) + 1}`, all[i].id)],
    })),
    "/debug/proxies": Array.from({ length: clusters * 20 }, (_, i) => proxy(now, i + 1, `app-${i}.shop`, all[i % clusters].id, name(i % clusters), i === 42 ? "no such cluster" : i % 211 === 9 ? "waits" : undefined)),
    "/debug/services": Array.from({ length: 300 }, (_, i) => service(`svc-${i}.shop.svc.cluster.local`, all.slice(i % 50, (i % 50) + 3).map((one) => one.id))),
    "/debug/explain": failure(now)["/debug/explain"],
  };
}

/** Names with the maximum length of a label, and names that a malicious member could use. */
const LONG = "x".repeat(253);
export const HOSTILE = ['<img src=x onerror="window.harmed=1">', "<script>window.harmed=1</script>", "\u202ednah-tfel", "🦀🌊 naïve 例え", LONG, "a\u0007b\nc", "javascript:window.harmed=1", "'; DROP", "__proto__"];

/** Invalid names. */
export function hostile(now) {
  const rows = HOSTILE.map((name, i) => cluster(now, name, HOSTILE[(i + 1) % HOSTILE.length], { state: i % 2 ? "stale" : "live", reason: name, secret: `strait-system/${name}`, trustDomain: name, ...(i % 3 ? {} : { credential: { expires: at(now, i * 1440 * MINUTE), endsSoon: i === 0, renewsItself: false } }) }));
  return {
    "/debug/clusters": rows,
    "/debug/networks": HOSTILE.map((network, i) => ({ network, clusters: [HOSTILE.at(i - 1)], gateways: [gateway(network, network, { source: network, hostname: network })] })),
    "/debug/proxies": HOSTILE.map((name, i) => ({ ...proxy(now, i + 1, name.replaceAll("~", ""), name, name, name), identity: name, version: name })),
    "/debug/services": HOSTILE.map((name) => service(name, [name], { namespace: name, conflicts: [{ field: name, winner: name, losers: [name] }] })),
    "/debug/events": HOSTILE.map((name, i) => change(now, i, { cluster: name, kind: name, namespace: name, name }, name)),
    "/debug/events?seq=0": {
      refusals: HOSTILE.map((name) => ({ proxy: name, error: name })),
      steps: HOSTILE.map((name) => ({ proxy: name, cluster: name, sentMs: 1, answeredMs: null, answer: "waiting" })),
    },
    "/debug/mesh": { problems: [], held: { ...stoppedAt(now).held, by: HOSTILE[0], reason: HOSTILE.join(" ") } },
    "/debug/rollout": { ...runningRollout(now), running: { ...runningRollout(now).running, share: HOSTILE, refusals: HOSTILE.map((name) => ({ proxy: name, error: name })) } },
    "/debug/explain": {
      proxy: HOSTILE[0], hostname: HOSTILE[0], port: 80, notes: [HOSTILE[1]],
      clusters: HOSTILE.map((name) => ({ cluster: name, network: name, ready: 1, total: 1, sent: 0, via: null, reason: name, code: "STR0402" })),
      endpoints: HOSTILE.map((name) => ({ address: name, port: 1, cluster: name, network: name, verdict: "withheld", steps: [{ step: name, ok: false, detail: name }] })),
    },
  };
}

/** Returns a mesh without members. */
export const empty = () => ({ "/debug/clusters": [], "/debug/networks": [], "/debug/proxies": [], "/debug/services": [], "/debug/events": [] });
