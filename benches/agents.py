"""Scenario about agents that authenticate with tokens: the time of a certificate, and the time until a thousand agents that start at
once are in sync. Each has its own pod in one of the clusters; the server sends no requests about tokens to an API server."""

import json
import time

from processes import CLUSTERS, Load, Process, fetch, free_port, output, running, world
from traffic import Objects
from windows import SIDECAR, scaled, warmed

AUDIENCE = "istio-ca"
# Certificates per second, and the duration in seconds. The server allows an account twenty at once, and ten a second.
RATE, SECONDS = 100, 10
NAMESPACE = "default"


def pod(number, account):
    """Returns the pod of the proxy with this number, as xdsload identifies it."""
    ip = f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"xdsload-{number}",
            "labels": {"app": "xdsload", "security.istio.io/tlsMode": "istio"},
        },
        "spec": {"serviceAccountName": account, "nodeName": "n", "containers": [{"name": "app", "image": "app"}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def tokens(it, numbers, account_of):
    """Creates pods and their accounts, in each cluster in turn. Returns the cluster and the token of each."""
    accounts = set()
    clusters = [f"c{cluster + 1}" for cluster in range(CLUSTERS)]
    apis = {cluster: it.api(cluster) for cluster in clusters}
    pods = {cluster: Objects(it, "pods", "v1", cluster) for cluster in clusters}
    made = []
    for number in numbers:
        cluster, account = clusters[number % CLUSTERS], account_of(number)
        if (cluster, account) not in accounts:
            accounts.add((cluster, account))
            body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": NAMESPACE, "name": account}}
            apis[cluster].ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", body)
        pods[cluster].add(pod(number, account))
        bound = {"apiVersion": "v1", "kind": "Pod", "name": f"xdsload-{number}"}
        spec = {"audiences": [AUDIENCE], "expirationSeconds": 86400, "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        made.append((cluster, apis[cluster].ask("POST", path, request)["status"]["token"]))
    return made


def reviews(it):
    """Returns the number of requests about tokens that API servers received."""
    counts = (it.order("requests", f"c{n + 1}", verb="create", resource="tokenreviews")["count"] for n in range(CLUSTERS))
    return sum(counts)


def rsa_authority(folder):
    """Replaces the CA in this folder by one with a key of RSA 2048."""
    key, certificate = folder / "ca-key.pem", folder / "ca-cert.pem"
    output("openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    output("openssl", "req", "-x509", "-new", "-sha256", "-key", key, "-days", "365", "-subj", "/O=cluster.local", *extensions, "-out", certificate)
    for name in ("cert-chain.pem", "root-cert.pem"):
        (folder / name).write_text(certificate.read_text())


def idle(options, it, server, token):
    """Returns the resident memory in MB of an idle agent of this project that has its certificate."""
    folder = it.folder / "agent"
    folder.mkdir()
    (folder / "token").write_text(token)
    health, pages = (f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [options.agent, "run", "--no-envoy", "--discovery", server.address.replace("127.0.0.1", "localhost")]
    command += ["--cluster", "c1", "--name", "xdsload-0", "--namespace", NAMESPACE, "--service-account", "xdsload", "--ip", "198.18.0.0"]
    command += ["--token-file", folder / "token", "--roots-file", it.folder / "ca/root-cert.pem", "--dir", folder, "--allow-key-on-disk"]
    command += ["--health-address", health, "--agent-address", pages]
    with running(Process([str(word) for word in command], folder, "agent", speaks=False)) as agent:
        until = time.monotonic() + options.sync_seconds
        while fetch(health, "/healthz/ready")[0] != 200:
            if time.monotonic() > until:
                agent.fail("is not ready")
            agent.must_run()
            time.sleep(0.05)
        agent.rest()
        return agent.memory()["rss"] / 1e6


def agents(options, side):
    if not side.name == "a" or options.a:
        return {}
    proxies, asking = scaled(options, 1000), RATE * SECONDS
    with world(options, scaled(options, 1000)) as it:
        rsa_authority(it.folder / "ca")
        streams = tokens(it, range(proxies), lambda number: "xdsload")
        callers = tokens(it, range(proxies, proxies + asking), lambda number: f"caller-{number}")
        (it.folder / "tokens").write_text("".join(f"{token}\n" for _, token in streams))
        (it.folder / "callers").write_text("".join(f"{cluster} {token}\n" for cluster, token in callers))
        with running(warmed(options, it, side)) as server:
            asked = reviews(it)
            flags = ("--tokens", it.folder / "tokens", "--subscribe", "0.05", *SIDECAR)
            with running(Load(options, it, server, proxies, *flags, accounts=1)) as load:
                load.in_sync()
                last = load.end()["sync"]["syncMs"]["last"] / 1e3
            server.settle()
            command = [options.csrload, "--server", server.address, "--roots", it.folder / "ca/root-cert.pem"]
            command += ["--tokens", it.folder / "callers", "--rate", RATE]
            found = json.loads(output(*(str(word) for word in command)))
            if found["refused"]:
                raise SystemExit(f"benches/run: agents: {found['refused']} of {asking} received no certificate")
            asked = reviews(it) - asked
            resident = idle(options, it, server, streams[0][1])
    return {
        "an idle agent: Rss MB": resident,
        f"{proxies} agents with tokens: last in sync, wall s": last,
        f"{proxies} agents with tokens: TokenReviews": asked,
        f"certificates, RSA 2048, {RATE}/s: call p50, wall ms": found["callMs"]["p50"],
        f"certificates, RSA 2048, {RATE}/s: call p99, wall ms": found["callMs"]["p99"],
        f"certificates, RSA 2048, {RATE}/s: with the dial p99, wall ms": found["dialMs"]["p99"],
    }
