"""The processes of a benchmark: simulated clusters, a server under test, its load; and what they use.

All of them live in a temporary folder, and end with the block that they were started for.
"""

import contextlib
import http.client
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

CLUSTERS = 10
# Of the clusters where Secrets are looked for in one of them.
SYSTEM_NAMESPACE = "istio-system"
REST_SECONDS = 12
# Where one thread of the load client would be what everybody waits for: it takes 3 to 4 s of CPU for a storm of 1,000.
EVERY_CPU = ("--threads", os.cpu_count())


class Process:
    """A child process with its log beside it, and what it has used."""

    def __init__(self, command, folder, name, speaks=True, **environment):
        """`speaks`: its output begins with a line for us. Else that is its log, too."""
        self.log = folder / f"{name}.log"
        self.started = time.monotonic()
        with open(self.log, "w") as log:
            output = subprocess.PIPE if speaks else log
            self.child = subprocess.Popen(
                command, cwd=folder, env=os.environ | environment, stdout=output, stderr=log, text=True
            )

    def first_line(self):
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.child.args[0]} did not start:\n{self.log.read_text()[-2000:]}")
        # What comes after must not fill the pipe.
        threading.Thread(target=self.child.stdout.read, daemon=True).start()
        return json.loads(line)

    def cpu(self):
        """CPU seconds so far, by the clock of the process (clock_getcpuclockid(3)), in nanoseconds."""
        return time.clock_gettime(~self.child.pid << 3 | 2)

    def memory(self):
        """Pss and Private_Dirty in bytes."""
        text = Path(f"/proc/{self.child.pid}/smaps_rollup").read_text()
        kib = lambda key: int(re.search(rf"^{key}:\s+(\d+) kB", text, re.M).group(1))
        return {"pss": kib("Pss") * 1024, "dirty": kib("Private_Dirty") * 1024}

    def settle(self, limit=30):
        """Waits until the process has done nothing for half a second."""
        before, until = self.cpu(), time.monotonic() + limit
        while time.monotonic() < until:
            time.sleep(0.5)
            now = self.cpu()
            if now - before <= 0.02:
                return
            before = now

    def rest(self):
        """Waits until it has also done what it does a while after it was busy, such as to give memory back."""
        self.settle()
        time.sleep(REST_SECONDS)
        self.settle()

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


class World(Process):
    """Simulated clusters, and a CA for everybody."""

    def __init__(self, options, folder, services, endpoints=10, clusters=CLUSTERS, *flags):
        self.folder, self.services, self.clusters = folder, services, clusters
        self.first = "config" if options.config_cluster else "c1"
        sim = [options.sim, "--clusters", clusters, "--services", services, "--endpoints", endpoints]
        sim += ["--same-names", "--networks", options.networks, "--out", folder / "sim", *flags]
        if options.config_cluster:
            sim += ["--config-cluster", "config", "--namespace", SYSTEM_NAMESPACE, "--apis", "istio,gateway-api"]
        if options.pods and "--pods" not in flags:
            sim.append("--pods")
        subprocess.run([options.strait, "certs", "init", folder / "ca"], check=True, stdout=subprocess.DEVNULL)
        super().__init__([str(part) for part in sim], folder, "sim")
        self.control = self.first_line()["control"]

    def order(self, order, cluster=None, **details):
        """Has a cluster, or any one, do something; returns what is answered."""
        body = {"cluster": cluster or f"c{random.randint(1, self.clusters)}", **details}
        # Anew for each: what is idle between two measurements is closed.
        with contextlib.closing(http.client.HTTPConnection(self.control)) as connection:
            connection.request("POST", f"/v1/{order}", json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"strait-sim refused {order} {body}: {answer}")
        return answer

    def hostnames(self):
        """Of its services, found by changing some: NAME.NAMESPACE.svc.cluster.local."""
        return sorted({self.change()["hostname"] for _ in range(4 * self.services)})

    def change(self, service=None):
        """One endpoint somewhere gets another address."""
        return self.order("change", **({"service": service} if service else {}))


class Server(Process):
    """The server under test."""

    def __init__(self, side, world, **environment):
        folder = Path(tempfile.mkdtemp(prefix=f"{side.name}-", dir=world.folder))
        port = side.port or free_port()
        filled = side.command.format(
            secrets=world.folder / "sim/secrets",
            ca=world.folder / "ca",
            state=folder / "state",
            kubeconfig=world.folder / f"sim/{world.first}.kubeconfig",
            xds=port,
        )
        super().__init__(shlex.split(filled), folder, "server", speaks=not side.port, **environment)
        self.address = f"127.0.0.1:{side.port}" if side.port else self.first_line()["xds"]
        self.secrets = world.folder / "sim/secrets"


class Load(Process):
    """xdsload, stage by stage."""

    def __init__(self, options, world, server, proxies, *flags):
        command = [options.xdsload, "--server", server.address, "--proxies", proxies, "--ca-dir", world.folder / "ca"]
        command += ["--clusters", ",".join(f"c{n + 1}" for n in range(world.clusters))]
        if options.networks > 1:
            # As sidecars do: not every server finds a proxy's network by its cluster.
            command += ["--networks", ",".join(f"n{n % options.networks + 1}" for n in range(world.clusters))]
        command += ["--protocol", options.protocol, "--timeout", options.sync_seconds, "--duration", 86400]
        command += ["--stamps", f"http://{world.control}", "--server-name", options.server_name, *flags]
        self.started, self.server = time.monotonic(), server
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([str(part) for part in command], stdout=pipe, stderr=pipe, text=True)

    def in_sync(self):
        """Waits until all proxies are; returns after how many seconds of the stage."""
        line = self.child.stderr.readline()
        found = re.match(r"xdsload: (\d+) of (\d+) in sync after ([\d.]+) s", line)
        if not found or found.group(1) != found.group(2):
            log = self.server.log.read_text()[-2000:]
            raise SystemExit(f"{line}{self.child.stderr.read() if not found else ''}{self.end() if found else ''}\n{log}")
        return float(found.group(3))

    def end(self):
        """Ends it and returns its report."""
        self.child.send_signal(signal.SIGTERM)
        return json.loads(self.child.communicate()[0])


class Peak:
    """The highest Pss of a process while in the block, sampled."""

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
def world(options, services, endpoints=10, clusters=CLUSTERS, *flags):
    folder = Path(tempfile.mkdtemp(prefix="strait-bench-"))
    try:
        with running(World(options, folder, services, endpoints, clusters, *flags)) as it:
            yield it
    finally:
        shutil.rmtree(folder, ignore_errors=True)
