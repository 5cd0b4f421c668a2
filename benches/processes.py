"""The processes of a benchmark: simulated clusters, a server under test, its load; and their resource usage.

They run in a temporary folder, and are stopped at the end of the block that started them.
"""

import base64
import contextlib
import http.client
import json
import os
import queue
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CLUSTERS = 10
# The namespace of the Secrets if they are in a cluster.
SYSTEM_NAMESPACE = "istio-system"
REST_SECONDS = 12
# Go's runtime returns unused memory over minutes.
GO_REST_SECONDS = 150
# Enough for 2,000 simulated clusters, each with its connections.
DESCRIPTORS = 200_000
# For scenarios in which one thread of the load client would be the bottleneck: a storm of 1,000 takes it 3 to 4 s of CPU.
EVERY_CPU = ("--threads", os.cpu_count())


class Process:
    """A child process, its log file and its resource usage. Its own child processes end with it."""

    def __init__(self, command, folder, name, speaks=True, **environment):
        """`speaks`: the first line of its output is for us. Otherwise its output is part of the log."""
        self.log = folder / f"{name}.log"
        self.started = time.monotonic()
        with open(self.log, "w") as log:
            output = subprocess.PIPE if speaks else log
            try:
                self.child = subprocess.Popen(
                    command, cwd=folder, env=os.environ | environment, stdout=output, stderr=log, text=True, start_new_session=True
                )
            except OSError as error:
                raise SystemExit(f"benches/run: {shlex.join(command)}\ndoesn't start: {error.strerror}") from None

    def told(self, key, seconds, advice=""):
        """Returns the first line of its output, a JSON object that has `key`."""
        lines = queue.SimpleQueue()

        def read():
            lines.put(self.child.stdout.readline())
            # Later output must not fill the pipe.
            for _ in self.child.stdout:
                pass

        threading.Thread(target=read, daemon=True).start()
        awaited = f'{{"{key}": "HOST:PORT"}} was awaited as its first line{advice}'
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            self.fail(f"printed nothing for {seconds:g} s; {awaited}")
        if not line:
            self.fail(f"ended without a word; {awaited}")
        try:
            told = json.loads(line)
            told[key]
        except (ValueError, KeyError, TypeError):
            self.fail(f"said {line.strip()[:200]!r}; {awaited}")
        return told

    def listening(self, port, seconds, advice):
        """Waits until the process listens on this port."""
        until = time.monotonic() + seconds
        while not listens(port):
            if self.child.poll() is not None:
                self.fail(f"ended with {self.child.returncode}; that it listens on port {port} was awaited{advice}")
            if time.monotonic() > until:
                self.fail(f"doesn't listen on port {port} after {seconds:g} s{advice}")
            time.sleep(0.01)

    @contextlib.contextmanager
    def ended_on_fault(self):
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def fail(self, what):
        """Exits with an error about this process and the end of its log."""
        log = self.log.read_text(errors="replace")[-2000:].strip()
        raise SystemExit(f"benches/run: {shlex.join(self.child.args)}\n{what}" + (f"; its log:\n{log}" if log else ""))

    def must_run(self):
        if self.child.poll() is not None:
            self.fail(f"ended with {self.child.returncode} while it was measured")

    def cpu(self):
        """Returns its CPU time so far in seconds, by the clock of the process (clock_getcpuclockid(3)), which counts nanoseconds."""
        self.must_run()
        return time.clock_gettime(~self.child.pid << 3 | 2)

    def memory(self):
        """Returns Pss, Private_Dirty and Rss in bytes."""
        self.must_run()
        text = Path(f"/proc/{self.child.pid}/smaps_rollup").read_text()
        kib = lambda key: int(re.search(rf"^{key}:\s+(\d+) kB", text, re.M).group(1))
        return {"pss": kib("Pss") * 1024, "dirty": kib("Private_Dirty") * 1024, "rss": kib("Rss") * 1024}

    def descriptors(self):
        self.must_run()
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def settle(self, limit=30):
        """Waits until the process has been idle for half a second, at most `limit` seconds."""
        before, until = self.cpu(), time.monotonic() + limit
        while time.monotonic() < until:
            time.sleep(0.5)
            now = self.cpu()
            if now - before <= 0.02:
                return
            before = now

    def rest(self):
        """Waits until the process has also finished its delayed work, such as returning memory."""
        self.settle()
        time.sleep(REST_SECONDS)
        self.settle()

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(5)


class World(Process):
    """Simulated clusters, and the CA of the server and the proxies."""

    def __init__(
        self, options, folder, services, endpoints=10, clusters=CLUSTERS, *flags, pods=None, networks=None, config_cluster=None
    ):
        """Pods, networks and the location of the Secrets come from the options, unless the scenario sets them."""
        chosen = lambda value, option: option if value is None else value
        self.folder, self.services, self.clusters = folder, services, clusters
        self.config_cluster = chosen(config_cluster, options.config_cluster)
        self.first = "config" if self.config_cluster else "c1"
        sim = [options.sim, "--clusters", clusters, "--services", services, "--endpoints", endpoints]
        sim += ["--same-names", "--networks", chosen(networks, options.networks), "--out", folder / "sim", *flags]
        if self.config_cluster:
            sim += ["--config-cluster", "config", "--namespace", SYSTEM_NAMESPACE, "--apis", "istio,gateway-api"]
        if chosen(pods, options.pods):
            sim.append("--pods")
        output(options.strait, "certs", "init", folder / "ca")
        super().__init__([str(part) for part in sim], folder, "sim")
        with self.ended_on_fault():
            self.control = self.told("control", options.sync_seconds)["control"]

    def order(self, order, cluster=None, **details):
        """Sends an order to a cluster, by default a random one. Returns the response."""
        body = {"cluster": cluster or f"c{random.randint(1, self.clusters)}", **details}
        # A new connection for each order: an idle one is closed between two measurements.
        self.must_run()
        with contextlib.closing(http.client.HTTPConnection(self.control)) as connection:
            connection.request("POST", f"/v1/{order}", json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"benches/run: strait-sim refused {order} {body}: {answer}")
        return answer

    def names(self, cluster="c1"):
        """Returns its services as NAMESPACE/NAME: services with an address, and headless services."""
        plain, headless = [], []
        for service in self.api(cluster).ask("GET", "/api/v1/services")["items"]:
            if service["metadata"]["name"] != "eastwestgateway":
                name = "{namespace}/{name}".format(**service["metadata"])
                (headless if service["spec"]["clusterIP"] == "None" else plain).append(name)
        return plain, headless

    def change(self, service=None, cluster=None):
        """Changes the address of one endpoint."""
        return self.order("change", cluster, **({"service": service} if service else {}))


    def api(self, cluster):
        """Returns a client of the API server of a cluster."""
        return Api(json.loads((self.folder / f"sim/{cluster}.kubeconfig").read_text()))


# API servers close connections without requests after some 10 s.
CONNECTION_KEPT = 3


class Api:
    """A client of an API server."""

    def __init__(self, kubeconfig):
        cluster = kubeconfig["clusters"][0]["cluster"]
        trusted = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self.connection = http.client.HTTPSConnection(cluster["server"].removeprefix("https://"), context=trusted)
        self.token = kubeconfig["users"][0]["user"]["token"]
        self.used = 0

    def ask(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if time.monotonic() - self.used > CONNECTION_KEPT:
            # The next request opens another.
            self.connection.close()
        self.used = time.monotonic()
        self.connection.request(method, path, body and json.dumps(body), headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status >= 400:
            raise SystemExit(f"benches/run: {method} {path}: {response.status} {answer[:200]!r}")
        return json.loads(answer)


# The placeholders in a server's command. After a $ they are left to the shell.
PLACES = ("secrets", "ca", "state", "kubeconfig", "xds")
PLACE = r"(?<!\$)\{([a-z_]+)\}"


class Side:
    """One of the compared servers: the words of its command, and its port if it does not print one.

    `in_cluster`: the command if the Secrets are in a cluster. `go`: the address of the profiles of a server written in Go."""

    def __init__(self, name, command, port, in_cluster=None, go=None):
        self.name, self.command, self.port, self.go = name, command, port, go
        self.in_cluster = in_cluster or command

    def stateless(self):
        """Returns this server without a state directory, or None if its command has none."""
        state = next((place for place, word in enumerate(self.command) if word == "{state}"), None)
        if state is None:
            return None
        command = self.command[: state - 1] + self.command[state + 1 :]
        return Side(self.name, command, self.port, None, self.go)


class Server(Process):
    """The server under test."""

    def __init__(self, options, side, world, **environment):
        folder = Path(tempfile.mkdtemp(prefix=f"{side.name}-", dir=world.folder))
        port = side.port or free_port()
        if listens(port):
            raise SystemExit(f"benches/run: something listens on port {port} already; --{side.name}-port has to be free")
        values = {
            "secrets": world.folder / "sim/secrets",
            "ca": world.folder / "ca",
            "state": folder / "state",
            "kubeconfig": world.folder / f"sim/{world.first}.kubeconfig",
            "xds": port,
        }
        command = side.in_cluster if world.config_cluster else side.command
        filled = [re.sub(PLACE, lambda place: str(values[place.group(1)]), word) for word in command]
        self.admin, self.go = None, side.go
        super().__init__(filled, folder, "server", speaks=not side.port, **environment)
        with self.ended_on_fault():
            if side.port:
                advice = f". Is it --{side.name}-port? A slow server needs more --sync-seconds"
                self.listening(port, options.sync_seconds, advice)
                self.address = f"127.0.0.1:{port}"
            else:
                advice = f". Pass the port of another server with --{side.name}-port; a slow server needs more --sync-seconds"
                told = self.told("xds", options.sync_seconds, advice)
                self.address, self.admin = told["xds"], told.get("admin")
        self.secrets = world.folder / "sim/secrets"

    def metric(self, name):
        """Returns the value of a metric without labels, or None if the server has no such metric."""
        found = re.search(rf"^{name} (\S+)$", fetch(self.admin, "/metrics")[1], re.M) if self.admin else None
        return float(found.group(1)) if found else None

    def ready(self, seconds):
        """Waits until the server reports that it is ready."""
        until = time.monotonic() + seconds
        while fetch(self.admin, "/readyz")[0] != 200:
            self.must_run()
            if time.monotonic() > until:
                self.fail(f"is not ready after {seconds:g} s")
            time.sleep(0.02)

    def rest(self):
        """Waits as for any process. A Go server also collects its garbage and returns free memory to the system."""
        super().rest()
        if self.go:
            self.collected()
            # A scenario that measures memory six times prints nothing else meanwhile.
            print(f"waits {GO_REST_SECONDS} s until a Go server has returned memory", file=sys.stderr)
            time.sleep(GO_REST_SECONDS)

    def rested(self):
        """Returns its memory after a rest. For a Go server, also the live heap: the heap after another collection."""
        self.rest()
        return self.memory() | ({"live": self.collected()} if self.go else {})

    def collected(self):
        status, profile = fetch(self.go, "/debug/pprof/heap?gc=1&debug=1")
        found = re.search(r"^# HeapAlloc = (\d+)$", profile, re.M)
        if status != 200 or not found:
            self.fail(f"has no heap profile at http://{self.go}/debug/pprof/heap (HTTP {status})")
        return int(found.group(1))


class Load(Process):
    """xdsload, with its stages. The proxies have several service accounts, because an identity has a budget of memory."""

    def __init__(self, options, world, server, proxies, *flags, accounts=10):
        command = [options.xdsload, "--server", server.address, "--proxies", proxies, "--ca-dir", world.folder / "ca"]
        command += ["--clusters", ",".join(f"c{n + 1}" for n in range(world.clusters))]
        if options.networks > 1:
            # As sidecars do: not every server derives a proxy's network from its cluster.
            command += ["--networks", ",".join(f"n{n % options.networks + 1}" for n in range(world.clusters))]
        command += ["--service-accounts", accounts, "--protocol", options.protocol, "--timeout", options.sync_seconds, "--duration", 86400]
        command += ["--stamps", f"http://{world.control}", "--server-name", options.server_name, *flags]
        self.started, self.server = time.monotonic(), server
        pipe = subprocess.PIPE
        command = [str(part) for part in command]
        self.child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def in_sync(self):
        """Waits until all proxies are in sync. Returns the seconds since the start of the stage."""
        line = self.child.stderr.readline()
        found = re.match(r"xdsload: (\d+) of (\d+) in sync after ([\d.]+) s", line)
        if not found or found.group(1) != found.group(2):
            self.server.must_run()
            self.stop()
            self.server.fail(f"not all proxies are in sync with it: {(line + self.child.stderr.read()).strip()}")
        return float(found.group(3))

    def window(self):
        """Begins another window of counters. Returns its index in `windows` of the report."""
        self.child.send_signal(signal.SIGUSR1)
        line = self.child.stderr.readline()
        found = re.match(r"xdsload: window (\d+)", line)
        if not found:
            raise SystemExit(f"benches/run: xdsload began no window: {line.strip()}")
        return int(found.group(1))

    def end(self):
        """Stops xdsload and returns its report."""
        self.child.send_signal(signal.SIGTERM)
        report, told = self.child.communicate()
        if not report:
            raise SystemExit(f"benches/run: xdsload ended without a report: {told.strip()}")
        return json.loads(report)


class Peak:
    """The highest sampled Pss of a process during the block."""

    def __init__(self, process):
        self.process, self.pss, self.over = process, 0, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()
        return self

    def sample(self):
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                self.pss = max(self.pss, self.process.memory()["pss"])
            self.over.wait(0.05)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def fetch(address, path):
    """Returns the status and text of a path of an HTTP server, or status 0 if the server is unreachable."""
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
    except OSError:
        return 0, ""


def more_descriptors():
    """Raises the limit of file descriptors for all child processes as far as the machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (DESCRIPTORS, most):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, most)))
            return


def output(*command):
    """Runs a short program and returns its output."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"benches/run: {shlex.join(map(str, command))}\nended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(process):
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def world(options, services, endpoints=10, clusters=CLUSTERS, *flags, **chosen):
    folder = Path(tempfile.mkdtemp(prefix="strait-bench-"))
    try:
        with running(World(options, folder, services, endpoints, clusters, *flags, **chosen)) as it:
            yield it
    finally:
        shutil.rmtree(folder, ignore_errors=True)
