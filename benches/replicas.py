"""Scenario about two replicas of the control plane: the bytes sent to a proxy that loses its replica and reconnects to the other.
Versions are content hashes, so both replicas use the same versions, and a proxy reports the versions that it has. The load client
reports them only for upstream clusters and assignments, since it does not store versions of listeners and routes."""

import signal
import time

from processes import Load, running, world
from windows import scaled, warmed

# A terminating server closes its streams over some seconds; a proxy waits up to five before it reconnects.
MOVE_SECONDS = 60


class Beside:
    """Two servers with one load: the first, and the server to use after the first is lost."""

    def __init__(self, first, second):
        self.second, self.address = second, f"{first.address},{second.address}"

    def must_run(self):
        self.second.must_run()

    def fail(self, what):
        self.second.fail(what)


def replicas(options, side):
    figures = {}
    proxies = scaled(options, 1000)
    with world(options, scaled(options, 1000)) as it:
        for subscribe, share in (("0.05", "5 %"), ("all", "all")):
            with running(warmed(options, it, side)) as first, running(warmed(options, it, side)) as second:
                with running(Load(options, it, Beside(first, second), proxies, "--subscribe", subscribe)) as load:
                    load.in_sync()
                    window, before = load.window(), second.cpu()
                    begun = time.monotonic()
                    first.child.send_signal(signal.SIGTERM)
                    while (second.metric("strait_xds_streams") or 0) < proxies:
                        if time.monotonic() > begun + MOVE_SECONDS:
                            second.fail(f"has not all of {proxies} proxies after {MOVE_SECONDS} s")
                        time.sleep(0.1)
                    took = time.monotonic() - begun
                    # Wait for the responses to the last proxy.
                    second.settle()
                    cpu = second.cpu() - before
                    report = load.end()["windows"][window]
                title = f"{proxies} proxies move to another control plane, {share}"
                figures |= {
                    f"{title}: wire kB/proxy": report["wireBytes"]["received"] / 1e3 / proxies,
                    f"{title}: server CPU ms/proxy": cpu * 1e3 / proxies,
                    f"{title}: all there, wall s": took,
                }
    return figures
