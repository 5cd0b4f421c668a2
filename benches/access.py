"""Scenario about access policies: their memory, and the cost of an edit of a policy that selects ten of a thousand proxies.

The proxies have pods, because policies select pods by labels; every policy applies to a proxy without a pod.
"""

import json

from traffic import NAMES, Objects, edited, in_cluster, start
from processes import CLUSTERS, running, world
from windows import SIDECAR, scaled, warmed

ACCESS = "security.istio.io/v1"
# Policies per namespace: 5,000 in all.
POLICIES = 250


class Policies(Objects):
    """AuthorizationPolicies that can be edited."""

    def __init__(self, it):
        super().__init__(it, "authorizationpolicies", ACCESS)

    def edit(self, number):
        """Changes a path in the next policy."""
        place = number * 7919 % len(self.stored)
        body = json.loads(json.dumps(self.stored[place]))
        body["spec"]["rules"][0]["to"][0]["operation"]["paths"] = [f"/edited-{number}/*"]
        self.put(place, body)


def policy(namespace, number, round):
    """Returns a policy for the pods of a round."""
    rules = [
        {
            "from": [{"source": {"principals": [f"cluster.local/ns/{namespace}/sa/client-{number}-{place}"]}}],
            "to": [{"operation": {"methods": ["GET"], "paths": [f"/part-{place}/*"]}}],
        }
        for place in range(3)
    ]
    metadata = {"namespace": namespace, "name": f"policy-{number}"}
    spec = {"selector": {"matchLabels": {"round": str(round)}}, "action": "ALLOW", "rules": rules}
    return {"apiVersion": ACCESS, "kind": "AuthorizationPolicy", "metadata": metadata, "spec": spec}


def pod(number):
    """Returns the pod of the proxy with this number, as xdsload identifies it."""
    namespace = NAMES[number // CLUSTERS % len(NAMES)]
    ip = f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}"
    labels = {"app": "xdsload", "round": str(round_of(number)), "security.istio.io/tlsMode": "istio"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": f"xdsload-{number}", "labels": labels},
        "spec": {"serviceAccountName": "xdsload", "nodeName": "n", "containers": [{"name": "app", "image": "app"}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def round_of(number):
    """Returns the round of a proxy. Each round has one proxy in each pair of cluster and namespace."""
    return number // (CLUSTERS * len(NAMES))


def access(options, side):
    in_cluster("access", side)
    services, proxies = scaled(options, 1000), scaled(options, 1000)
    each = scaled(options, POLICIES)
    rounds = round_of(proxies - 1) + 1
    title = f"{each * len(NAMES)} policies"
    with world(options, services, config_cluster=True) as it:
        pods = [Objects(it, "pods", "v1", f"c{cluster + 1}") for cluster in range(CLUSTERS)]
        for number in range(proxies):
            pods[number % CLUSTERS].add(pod(number))
        before, memory = start(options, side, it)
        policies = Policies(it)
        for number in range(each):
            for namespace in NAMES:
                policies.add(policy(namespace, number, number % rounds))
        after, more = start(options, side, it)
        figures = {
            f"{title}: first proxy in sync, beyond none, wall s": after - before,
            f"{title}: Private_Dirty MB beyond none": (more - memory) / 1e6,
        }
        with running(warmed(options, it, side)) as server:
            flags = ("--subscribe", "0.05", "--namespaces", len(NAMES), *SIDECAR)
            return figures | edited(options, it, server, proxies, flags, {f"{title}, one edit": policies.edit})
