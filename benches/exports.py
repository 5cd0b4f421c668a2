"""Scenario about exported services: many members that export the same services, from the start until each member has an import of
each service, then while nothing changes, and for single new exports."""

import re
import time

from processes import Server, fetch, running, world
from windows import scaled, spent

IMPORTS = {"STRAIT_MCS": "clusterset", "STRAIT_MCS_IMPORTS": "names"}
# Time until all members have all imports.
COLD_SECONDS = 600
API = "/apis/multicluster.x-k8s.io/v1beta1"
WRITES = "strait_mcs_writes_total"


def total(server, name, **labels):
    """Returns the sum of a metric's values with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", fetch(server.admin, "/metrics")[1], re.M)
    return sum(float(value) for found, value in lines if all(label in found for label in wanted))


def wait_for(server, what, seconds, condition, pause=0.2):
    """Waits for a condition. Returns the seconds that passed."""
    begun = time.monotonic()
    while not condition():
        server.must_run()
        if time.monotonic() > begun + seconds:
            server.fail(f"{what}: not within {seconds} s")
        time.sleep(pause)
    return time.monotonic() - begun


def is_quiet(server):
    before = total(server, WRITES)
    time.sleep(1)
    return total(server, WRITES) == before


def new_export(server, it, number):
    """Exports a new Service of the first cluster. Returns the seconds until the second one has its import."""
    source, target = it.api("c1"), it.api("c2")
    namespace = it.names()[0][0].split("/")[0]
    metadata = {"namespace": namespace, "name": f"new-{number}"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"name": "http", "port": 80}]}}
    source.ask("POST", f"/api/v1/namespaces/{namespace}/services", service)
    export = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": metadata}
    begun = time.monotonic()
    source.ask("POST", f"{API}/namespaces/{namespace}/serviceexports", export)
    names = f"{API}/namespaces/{namespace}/serviceimports?fieldSelector=metadata.name%3Dnew-{number}"
    wait_for(server, f"import new-{number}", 60, lambda: target.ask("GET", names)["items"], 0.002)
    return time.monotonic() - begun


def exports(options, side):
    members, services = scaled(options, 100), scaled(options, 1000)
    size = (services, 1, members, "--exports")
    expected = members * services
    figures = {}
    title = f"{members} members of {services} exports"
    with world(options, *size, pods=False, config_cluster=False) as it:
        # The members alone, without objects for their exports.
        with running(Server(options, side, it, STRAIT_MCS="clusterset")) as server:
            server.ready(options.sync_seconds)
            without = server.rested()["dirty"]
        with running(Server(options, side, it, **IMPORTS)) as server:
            server.ready(options.sync_seconds)
            before = server.cpu()
            ready = lambda: total(server, "strait_mcs_imports", state="ready") >= expected
            wall = wait_for(server, f"{expected} imports", COLD_SECONDS, ready)
            cpu, writes = server.cpu() - before, total(server, WRITES)
            wait_for(server, "no write for a second", 60, lambda: is_quiet(server), 0)
            memory, written = server.rested()["dirty"], total(server, WRITES)
            share = spent(server, 0, options.fixed_seconds) / options.fixed_seconds
            steady = total(server, WRITES) - written
            latencies = sorted(new_export(server, it, number) for number in range(options.changes))
    figures |= {
        f"{title}: all imports, wall s": wall,
        f"{title}: server CPU share of a core": cpu / wall,
        f"{title}: writes/s and member": writes / wall / members,
        f"{title}: writes while nothing changes": steady,
        f"{title}: B/export and member": (memory - without) / expected,
        f"{title}: idle, % of a core": share * 100,
        f"{title}: export to import p50, wall ms": latencies[len(latencies) // 2] * 1e3,
        f"{title}: export to import p99, wall ms": latencies[-1 - len(latencies) // 100] * 1e3,
    }
    return figures
