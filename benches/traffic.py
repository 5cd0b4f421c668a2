"""Scenario about traffic configuration: the cost of VirtualServices, Sidecars and a router with very many hosts.

The objects are in the config cluster, not in a folder, because a folder is read only when it has been unchanged for 100 ms.
"""

import json
import math
import re
import time

from processes import Load, Server, fetch, running, world
from windows import SIDECAR, of_each, scaled, spent, warmed

NAMESPACES = 20
# Objects per namespace, each for another service and visible only in its namespace: an edit affects a twentieth of the proxies.
RULES = 250
ROUTER_HOSTS, ROUTES_PER_HOST = 2000, 31
# Fraction of the services that Sidecars import.
IMPORTED = 0.05
# Time between two edits, in seconds, so that no edit waits for the previous one. With another server it is longer, because the
# debounce of that server would combine two edits.
PERIOD, PERIOD_BESIDE = 0.5, 3.0
# Longer than the interval of cache sweeps, in seconds: after it, entries that no stream holds are rebuilt.
REST = 65
# The names of namespaces in `xdsload --namespaces`.
NAMES = ["default", *(f"default-{number}" for number in range(2, NAMESPACES + 1))]
TRAFFIC = "networking.istio.io/v1"


class Objects:
    """The objects of one kind in a cluster, by default the config cluster."""

    def __init__(self, it, plural, group=TRAFFIC, cluster="config"):
        self.api, self.plural, self.stored, self.edits = it.api(cluster), plural, [], 0
        self.root = "/api/v1" if group == "v1" else f"/apis/{group}"
        there = {one["metadata"]["name"] for one in self.api.ask("GET", "/api/v1/namespaces")["items"]}
        for name in sorted(set(NAMES) - there):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.api.ask("POST", "/api/v1/namespaces", body)

    def path(self, body, name=""):
        return f"{self.root}/namespaces/{body['metadata']['namespace']}/{self.plural}{name}"

    def add(self, body):
        self.stored.append(self.api.ask("POST", self.path(body), body))

    def put(self, place, body):
        self.stored[place] = self.api.ask("PUT", self.path(body, "/" + body["metadata"]["name"]), body)

    def edit(self, number):
        """Gives the next object a timeout that it never had."""
        place = number * 7919 % len(self.stored)
        body = json.loads(json.dumps(self.stored[place]))
        self.edits += 1
        body["spec"]["http"][0]["timeout"] = f"{self.edits + 4}.5s"
        self.put(place, body)

    def reorder(self, number):
        """Writes the next object with its keys in reverse order and another label."""
        place = number * 7919 % len(self.stored)
        body = turned(self.stored[place])
        body["metadata"]["labels"] = {"bench": str(number)}
        self.put(place, body)


def turned(value):
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


def thing(kind, namespace, name, spec):
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def host_of(service):
    namespace, name = service.split("/")
    return f"{name}.{namespace}.svc.cluster.local"


def rule(namespace, number, service):
    """A VirtualService for clients of its namespace."""
    host = host_of(service)
    to = [{"destination": {"host": host}}]
    http = [{"match": [{"uri": {"prefix": "/api"}}], "timeout": "3s", "route": to}, {"route": to}]
    return thing("VirtualService", namespace, f"rule-{number}", {"hosts": [host], "exportTo": ["."], "http": http})


def traffic(options, side):
    in_cluster("traffic", side)
    return ruled(options, side) | scoped(options, side) | router(options, side)


def edits(options, side):
    """Runs only the edits of `traffic`, without cold starts and memory, which need six long rests with a server written in Go."""
    in_cluster("edits", side)
    return ruled(options, side, starts=False) | router(options, side)


def in_cluster(scenario, side):
    if not any("{kubeconfig}" in word for word in side.in_cluster):
        raise SystemExit(f"benches/run: {scenario}: the command of the server has no {{kubeconfig}}, which the objects need")


def ruled(options, side, starts=True):
    """Measures edits of VirtualServices among very many of them, and the start with them."""
    services, proxies = scaled(options, 1000), scaled(options, 1000)
    each = min(scaled(options, RULES), services)
    title = f"{each * NAMESPACES} VirtualServices"
    with world(options, services, config_cluster=True) as it:
        before, memory = start(options, side, it) if starts else (None, None)
        rules = Objects(it, "virtualservices")
        plain, _ = it.names()
        for number in range(each * NAMESPACES):
            service = plain[number // NAMESPACES * 7919 % len(plain)]
            rules.add(rule(NAMES[number % NAMESPACES], number, service))
        figures = {}
        if starts:
            after, more = start(options, side, it)
            figures[f"{title}: first proxy in sync, beyond none, wall s"] = after - before
            figures[f"{title}: Private_Dirty MB beyond none"] = (more - memory) / 1e6
        with running(warmed(options, it, side)) as server:
            flags = ("--subscribe", "0.05", "--namespaces", NAMESPACES, *SIDECAR)
            kinds = {f"{title}, one edit": rules.edit, f"{title}, order and labels alone": rules.reorder}
            figures |= edited(options, it, server, proxies, flags, kinds)
            if server.metric("strait_streams_woken_total") is not None:
                kinds = {f"{title}, hosts one by one, one edit": rules.edit}
                figures |= edited(options, it, server, proxies, (*flags, "--vhds"), kinds)
    return figures


def scoped(options, side):
    """Measures proxies in namespaces whose Sidecars import a twentieth of the services, and without Sidecars."""
    services, proxies = scaled(options, 1000), scaled(options, 1000)
    figures, found = {}, {}
    flags = ("--subscribe", "all", "--namespaces", NAMESPACES, *SIDECAR)
    with world(options, services, config_cluster=True) as it:
        plain, _ = it.names()
        for name in ("none", "Sidecars"):
            if name == "Sidecars":
                sidecars, share = Objects(it, "sidecars"), max(1, round(services * IMPORTED))
                for number, namespace in enumerate(NAMES):
                    own = [plain[(number * share + place) % len(plain)] for place in range(share)]
                    hosts = [f"*/{host_of(service)}" for service in own]
                    sidecars.add(thing("Sidecar", namespace, "default", {"egress": [{"hosts": hosts}]}))
            with running(Server(options, side, it)) as server:
                with running(Load(options, it, server, 1, *SIDECAR)) as load:
                    load.in_sync()
                    alone = server.rested()["dirty"]
                with running(Load(options, it, server, proxies, *flags, accounts=1)) as load:
                    load.in_sync()
                    memory = (server.rested()["dirty"] - alone) / proxies
                    received = load.end()["sync"]["wireBytes"]["received"] / proxies
            found[name] = (memory, received)
            figures[f"Sidecars of 5 %, {name}: Private_Dirty KiB/proxy"] = memory / 1024
            figures[f"Sidecars of 5 %, {name}: sent kB/proxy"] = received / 1e3
    (memory, received), (less, fewer) = found["none"], found["Sidecars"]
    figures["Sidecars of 5 %: memory of a proxy, to none"] = less / memory
    return figures | {"Sidecars of 5 %: sent to a proxy, to none": fewer / received}


def router(options, side):
    """Measures a router with very many hosts on one port, each in a separate object."""
    hosts = scaled(options, ROUTER_HOSTS)
    title = f"router of {hosts} hosts, {hosts * ROUTES_PER_HOST} routes"
    with world(options, scaled(options, 1000), config_cluster=True) as it:
        port = {"number": 80, "name": "http", "protocol": "HTTP"}
        gateways = Objects(it, "gateways")
        gateways.add(thing("Gateway", "default", "edge", {"servers": [{"port": port, "hosts": ["*"]}]}))
        rules = Objects(it, "virtualservices")
        plain, _ = it.names()
        for number in range(hosts):
            to = [{"destination": {"host": host_of(plain[number % len(plain)])}}]
            paths = [f"/part-{place}" for place in range(ROUTES_PER_HOST - 1)]
            http = [{"match": [{"uri": {"prefix": path}}], "route": to} for path in paths] + [{"route": to}]
            spec = {"hosts": [f"host-{number}.example"], "gateways": ["default/edge"], "http": http}
            rules.add(thing("VirtualService", "default", f"host-{number}", spec))
        with running(warmed(options, it, side)) as server:
            flags = ("--node-type", "router", "--routes")
            figures = edited(options, it, server, 1, flags, {f"{title}, one edit": rules.edit}, rests=not options.b)
            if server.metric("strait_streams_woken_total") is not None:
                kinds = {f"{title}, hosts one by one, one edit": rules.edit}
                figures |= edited(options, it, server, 1, (*flags, "--vhds"), kinds)
            return figures


def start(options, side, it):
    """Returns the time until the server has sent everything to one proxy, and its memory then."""
    with running(Server(options, side, it)) as server:
        flags = ("--expect-sync", it.services, "--longest-pause", 0.02)
        with running(Load(options, it, server, 1, *flags)) as load:
            load.in_sync()
        wall = time.monotonic() - server.started
        return wall, server.rested()["dirty"]


def edited(options, it, server, proxies, flags, kinds, rests=False):
    """Measures edits of some kinds: latency, bytes and resources sent, CPU; and the latency of an edit after a rest."""
    figures, windows = {}, {}
    seconds = options.changes * (PERIOD_BESIDE if options.b else PERIOD)
    with running(Load(options, it, server, proxies, *flags, accounts=1)) as load:
        load.in_sync()
        idle = spent(server, 0, seconds)
        for name, act in kinds.items():
            # The first ones fill caches and buffers.
            for number in range(3):
                act(1000 + number)
            server.settle()
            windows[name], before = load.window(), Heard(server)
            cost = of_each(server, options.changes, seconds, act, idle)
            figures |= before.until_now(server, name, options.changes)
            figures[f"{name}: server CPU ms/change"] = cost * 1e3
            # Traffic until the next kind is not counted.
            load.window()
            if rests:
                time.sleep(REST)
                rested = Heard(server)
                act(options.changes)
                server.settle()
                figures[f"{name}, after a rest: receive to send, wall ms"] = rested.mean_until_now(server) * 1e3
        report = load.end()
    for name, window in windows.items():
        told = report["windows"][window]
        for kind in ("cds", "eds", "lds", "rds", "vhds"):
            figures[f"{name}: {kind} resources/change"] = told["resources"][kind] / options.changes
        for kind in ("rds", "vhds"):
            figures[f"{name}: {kind} B/change"] = told["bytes"][kind] / options.changes
        figures[f"{name}: sent B/change"] = told["wireBytes"]["received"] / options.changes
    return figures


class Heard:
    """The server's metrics of the changes that it received; empty for a server without these metrics."""

    def __init__(self, server):
        self.woken, self.counts = server.metric("strait_streams_woken_total"), responses(server)
        self.seconds = server.metric("strait_propagation_seconds_sum")

    def until_now(self, server, name, changes):
        if self.woken is None:
            return {}
        figures = {f"{name}: streams woken/change": (server.metric("strait_streams_woken_total") - self.woken) / changes}
        counts = {bound: count - self.counts.get(bound, 0) for bound, count in responses(server).items()}
        if counts.get(math.inf):
            figures[f"{name}: receive to send p50, wall ms"] = quantile(counts, 0.5) * 1e3
            figures[f"{name}: receive to send p99, wall ms"] = quantile(counts, 0.99) * 1e3
        return figures

    def mean_until_now(self, server):
        counted = responses(server)[math.inf] - self.counts.get(math.inf, 0)
        return (server.metric("strait_propagation_seconds_sum") - self.seconds) / counted


def responses(server):
    """Returns the cumulative number of responses by the time since their change was received, in seconds."""
    text = fetch(server.admin, "/metrics")[1] if server.admin else ""
    found = re.findall(r'^strait_propagation_seconds_bucket\{le="([^"]+)"\} (\S+)$', text, re.M)
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in found}


def quantile(counts, share):
    """Returns the quantile, with values interpolated evenly within a bucket."""
    wanted, low, before = counts[math.inf] * share, 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted:
            return low if bound == math.inf else low + (bound - low) * (wanted - before) / max(1e-9, count - before)
        low, before = bound, count
    return low
