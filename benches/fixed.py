"""Scenarios about costs that do not depend on proxies: one proxy, many clusters, many entries."""

import statistics
import sys
import time

from processes import SYSTEM_NAMESPACE, Load, Server, running, world
from windows import SIDECAR, of_each, scaled, spent, warmed


def fixed(options, side):
    """Measures changes with one proxy that subscribes to everything: each change costs one delivery and the fixed cost."""
    figures = {}
    sides = {"with state": side, "without state": side.stateless()}
    for name, of_side in sides.items():
        if not of_side:
            print(f"fixed, {name}: the command has no {{state}}", file=sys.stderr)
            continue
        with world(options, scaled(options, 1000)) as it, running(warmed(options, it, of_side)) as server:
            with running(Load(options, it, server, 1, *SIDECAR)) as load:
                load.in_sync()
                seconds = options.fixed_seconds
                idle = spent(server, 0, seconds)
                for rate in (10, 1):
                    changes = max(1, round(rate * seconds))
                    cost = of_each(server, changes, seconds, lambda _: it.change(), idle)
                    figures[f"fixed, one proxy, {rate}/s, {name}: server CPU ms/change"] = cost * 1e3
                figures[f"fixed, one proxy, idle, {name}: server CPU share of a core"] = idle / seconds
            if name == "with state":
                figures |= paced(options, it, server)
    return figures


def paced(options, it, server, rate=50):
    """Returns the latencies of one proxy at this rate of changes per second."""
    with running(Load(options, it, server, 1, *SIDECAR)) as load:
        load.in_sync()
        changes = max(1, round(rate * min(options.fixed_seconds, 10)))
        spent(server, changes, changes / rate, lambda _: it.change())
        seen = load.end()["changes"]
    title = f"one proxy that watches everything, {rate}/s"
    latency = seen["latencyMs"]
    if latency["p50"] is None:
        return {}
    return {f"{title}: latency p50, wall ms": latency["p50"], f"{title}: latency p99, wall ms": latency["p99"]}


def members(options, side):
    """Measures very many small clusters in up to 50 networks."""
    clusters = scaled(options, 2000)
    many = dict(pods=True, networks=min(50, clusters))
    with world(options, 20, 5, clusters, **many) as it, running(Server(options, side, it)) as server:
        if server.admin:
            server.ready(options.sync_seconds)
        else:
            with running(Load(options, it, server, 1, "--expect-sync", it.services, "--longest-pause", 0.02)) as load:
                load.in_sync()
        wall, cpu = time.monotonic() - server.started, server.cpu()
        memory, descriptors = server.rested(), server.descriptors()
        share = spent(server, 0, options.fixed_seconds) / options.fixed_seconds
    title = f"{clusters} clusters"
    figures = {
        f"{title}: ready, wall s": wall,
        f"{title}: server CPU s to ready": cpu,
        f"{title}: Rss MB": memory["rss"] / 1e6,
        f"{title}: Private_Dirty MB": memory["dirty"] / 1e6,
        f"{title}: descriptors": descriptors,
        f"{title}: idle, % of a core": share * 100,
    }
    return figures | ({f"{title}: live heap MB": memory["live"] / 1e6} if "live" in memory else {})


def entries(options, side):
    """Measures changes of one of very many ServiceEntries in the config cluster. No proxy is updated."""
    if not any("{kubeconfig}" in word for word in side.in_cluster):
        print("entries: the command has no {kubeconfig}, which the entries need", file=sys.stderr)
        return {}
    count = scaled(options, 10_000)
    with world(options, 10, 1, 1, config_cluster=True) as it:
        api = it.api("config")
        path = f"/apis/networking.istio.io/v1/namespaces/{SYSTEM_NAMESPACE}/serviceentries"
        made = [api.ask("POST", path, entry(number)) for number in range(count)]
        with running(Server(options, side, it)) as server:
            with running(Load(options, it, server, 1, "--expect-sync", it.services + count, "--longest-pause", 0.02)) as load:
                load.in_sync()

            def change(number):
                place = number * 7919 % count
                wanted = made[place]
                first, second = divmod(number, 250)
                wanted["spec"]["endpoints"][0]["address"] = f"203.0.{first % 250}.{second + 1}"
                made[place] = api.ask("PUT", f"{path}/{wanted['metadata']['name']}", wanted)

            before = server.metric("strait_context_version")
            cost = of_each(server, options.changes, options.changes / 5, change)
            # The last version may not be published yet.
            deadline = time.monotonic() + 5
            while (after := server.metric("strait_context_version")) is not None:
                if after - (before or 0) >= options.changes or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
    if before is not None and after - before < options.changes:
        raise SystemExit(f"benches/run: entries: {options.changes} changes made {after - before:g} versions")
    return {f"entries, one of {count} changes: server CPU ms/change": cost * 1e3}


def entry(number):
    """Returns a ServiceEntry for an external host."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"name": f"entry-{number}", "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "hosts": [f"host-{number}.entries.example"],
            "location": "MESH_EXTERNAL",
            "resolution": "STATIC",
            "ports": [{"number": 443, "name": "tls", "protocol": "TLS"}],
            "endpoints": [{"address": f"198.51.{number // 250 % 250}.{number % 250 + 1}"}],
        },
    }
