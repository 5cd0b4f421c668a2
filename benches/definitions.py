"""Scenarios about definitions: services are added, removed and changed for proxies in many namespaces and clusters."""

import statistics
import sys

from processes import EVERY_CPU, Load, running, world
from windows import SIDECAR, floor, of_each, scaled, slope, spent, warmed

# (proxies, namespaces, clusters). Each cell varies one of the three.
DEFAULT_CELLS = [(800, 20, 10), (10, 20, 10), (5000, 20, 10), (800, 1, 10), (800, 100, 10), (800, 20, 1), (800, 20, 50)]
ALL_CELLS = [(n, namespaces, clusters) for n in (10, 800, 5000) for namespaces in (1, 20, 100) for clusters in (1, 10, 50)]
# Number of pods of the headless service, over all clusters.
HEADLESS_PODS = 1000
# Time between two changes, in seconds, so that no change waits for the previous one or is combined with it. The
# longer time is for another server, which may debounce.
PERIOD, PERIOD_BESIDE = 0.5, 1.0


class Changes:
    """The changes of a cell, each in cluster c1."""

    def __init__(self, it, namespaces):
        plain, (self.headless, *_) = it.names()
        # The namespaces that see a service visible to a twentieth of them, by their names in `xdsload --namespaces`.
        self.few = ["default", *(f"default-{number}" for number in range(2, namespaces + 1))][: max(1, namespaces // 20)]
        # For half of the services endpoints change, for the other half definitions, so that no update carries both.
        self.it, self.added = it, []
        self.endpoints, self.definitions = plain[::2], plain[1::2] or plain

    def kinds(self):
        """Returns the kinds of changes by name. A pod replaces another pod, and only added services are removed."""
        return {
            "endpoint": self.endpoint,
            "targetPort": lambda n: self.service(n, do="targetPort"),
            "label": lambda n: self.service(n, do="label", key="bench", value=str(n)),
            "new service": self.add,
            "removed service": self.remove,
            "new service that a twentieth sees": self.add_for_few,
            "headless pod": lambda _: [self.it.change(self.headless, "c1")],
        }

    def endpoint(self, number):
        return [self.it.change(self.endpoints[number % len(self.endpoints)], "c1")]

    def service(self, number, **change):
        self.it.order("service", "c1", service=self.definitions[number % len(self.definitions)], **change)
        return []

    def add(self, _):
        answer = self.it.order("service", "c1", do="create", endpoints=2)
        self.added.append(answer["service"])
        return answer["stamps"][:1]

    def add_for_few(self, number):
        namespace = self.definitions[0].split("/")[0]
        metadata = {"name": f"few-{number}", "annotations": {"networking.istio.io/exportTo": ",".join(self.few)}}
        address = f"10.255.{number // 250}.{number % 250 + 1}"
        ports = [{"name": "http", "protocol": "TCP", "port": 8080, "targetPort": 8080}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": address, "selector": {"app": "few"}, "ports": ports}}
        self.it.api("c1").ask("POST", f"/api/v1/namespaces/{namespace}/services", service)
        return []

    def remove(self, _):
        return self.it.order("service", "c1", do="delete", service=self.added.pop())["stamps"]


def definitions(options, side):
    figures, memories = {}, {}
    for proxies, namespaces, clusters in options.cells:
        proxies = scaled(options, proxies)
        namespaces = min(namespaces, proxies)
        of_cell, memory = cell(options, side, proxies, namespaces, clusters)
        figures |= of_cell
        pairs = min(proxies, namespaces * clusters)
        memories.setdefault((proxies, clusters), {})[pairs] = memory["dirty"]
    for (proxies, clusters), points in memories.items():
        if len(points) > 1:
            title = f"definitions, {proxies} proxies, {clusters} clusters"
            figures[f"{title}: Private_Dirty kB/scope"] = slope(sorted(points.items())) / 1e3
    return figures


def cell(options, side, proxies, namespaces, clusters):
    """Makes all changes for this number of proxies. Returns the figures, and the memory with these proxies."""
    services, changes = scaled(options, 1000), options.changes
    period = PERIOD_BESIDE if options.b else PERIOD
    title = f"definitions {proxies}x{namespaces}x{clusters}"
    figures, windows, stamps = {}, {}, {}
    with world(options, services + 1, 10, clusters, "--headless", 1) as it, running(warmed(options, it, side)) as server:
        kinds = Changes(it, namespaces)
        pods = scaled(options, HEADLESS_PODS)
        it.order("scale", "c1", service=kinds.headless, endpoints=max(1, pods - 10 * (clusters - 1)))
        flags = ("--subscribe", "0.05", "--namespaces", namespaces, *SIDECAR, *(EVERY_CPU if proxies > 1000 else ()))
        if options.vhds:
            flags += ("--vhds",)
        with running(Load(options, it, server, proxies, *flags)) as load:
            load.in_sync()
            memory = server.rested()
            idle = spent(server, 0, changes * period)
            cpu, woken = {}, {}
            for kind, act in kinds.kinds().items():
                stamps[kind] = []
                server.settle()
                windows[kind], before = load.window(), server.metric("strait_streams_woken_total")
                cpu[kind] = of_each(server, changes, changes * period, lambda n: stamps[kind].extend(act(n)), idle)
                if before is not None:
                    woken[kind] = (server.metric("strait_streams_woken_total") - before) / changes
                # Traffic until the next kind is not counted.
                load.window()
            report = load.end()
        seen = {one["address"]: one for one in report["changes"]["each"]}
        for kind in cpu:
            name, window = f"{title}, {kind}", report["windows"][windows[kind]]
            told = [seen[stamp["address"]] for stamp in stamps[kind] if stamp["address"] in seen]
            figures |= of_kind(name, changes, window, report["windows"][0], [one for one in told if one["proxies"]])
            if kind in woken:
                figures[f"{name}: streams woken/change"] = woken[kind]
            if cpu[kind] <= 0:
                print(f"{name}: the cost of so few changes is within the noise of the idle server", file=sys.stderr)
                continue
            figures[f"{name}: server CPU ms/change"] = cpu[kind] * 1e3
            if kind in ("targetPort", "label") and cpu["endpoint"] > 0:
                figures[f"{name}: server CPU, to that of an endpoint"] = cpu[kind] / cpu["endpoint"]
            if kind == "new service":
                bare = floor(options, proxies, window["wireBytes"]["received"] / changes / proxies)
                figures[f"{name}: server CPU µs/proxy over floor"] = (cpu[kind] / proxies - bare) * 1e6
            if kind == "new service that a twentieth sees" and cpu["new service"] > 0:
                figures[f"{name}: server CPU, to that of one that all see"] = cpu[kind] / cpu["new service"]
            if kind == "headless pod":
                figures[f"{name}: server CPU µs/proxy"] = cpu[kind] * 1e6 / proxies
    return figures | {f"{title}: Private_Dirty MB": memory["dirty"] / 1e6}, memory


def of_kind(name, changes, window, quiet, told):
    """Returns the bytes and resources that proxies received, and the latencies. `quiet` is a window without changes."""
    idle = quiet["cpuSeconds"] / max(1e-3, quiet["seconds"]) * window["seconds"]
    figures = {
        f"{name}: client CPU ms/change": (window["cpuSeconds"] - idle) * 1e3 / changes,
        f"{name}: sent B/change": window["wireBytes"]["received"] / changes,
    }
    for kind, resources in window["resources"].items():
        if resources:
            figures[f"{name}: {kind} resources/change"] = resources / changes
            figures[f"{name}: {kind} B/change"] = window["bytes"][kind] / changes
    if told:
        figures |= {
            f"{name}: proxies told/change": statistics.mean(one["proxies"] for one in told),
            f"{name}: latency p50, wall ms": statistics.median(one["p50"] for one in told),
            f"{name}: latency p99, wall ms": statistics.median(one["p99"] for one in told),
            f"{name}: last proxy, median, wall ms": statistics.median(one["last"] for one in told),
        }
    return figures


def scopes(options, side):
    """Measures W2 with a proxy in each pair of cluster and namespace, and with as many proxies in one namespace."""
    clusters, namespaces = 50, scaled(options, 100)
    pairs = clusters * namespaces
    figures, memory = {}, {}
    for namespaces in (1, namespaces):
        with world(options, scaled(options, 2000), 5, clusters, "--encoded") as it, running(warmed(options, it, side)) as server:
            flags = ("--subscribe", "0.05", "--namespaces", namespaces, *SIDECAR, *EVERY_CPU)
            with running(Load(options, it, server, pairs, *flags)) as load:
                load.in_sync()
                memory[namespaces] = server.rested()["dirty"]
                plain, _ = it.names()
                target = lambda n: it.order("service", "c1", service=plain[n % len(plain)], do="targetPort")
                # The bar applies only to the run with all namespaces.
                seconds = options.changes * PERIOD
                cost = of_each(server, options.changes, seconds, target)
    title = f"scopes of {pairs} pairs"
    (few, one), (many, all_of) = ((clusters, memory[1]), (pairs, memory[namespaces]))
    if many > few:
        figures[f"{title}: Private_Dirty MB beyond the proxies"] = (all_of - one) / (many - few) * many / 1e6
    figures[f"{title}: Private_Dirty MB, all in one namespace"] = one / 1e6
    figures[f"{title}: server CPU ms/change that nobody sees"] = cost * 1e3
    return figures
