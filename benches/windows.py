"""Shared functions of the scenarios: sizes, warm servers, and costs in a window of time."""

import math
import re
import statistics
import time

from processes import Load, Server, output, running

# The subscriptions of a default sidecar in addition to upstream clusters and assignments.
SIDECAR = ("--routes", "--name-table")


def scaled(options, number):
    return max(1, round(number * options.scale))


def slope(points):
    """Returns the slope of points (x, y)."""
    return statistics.linear_regression(*zip(*points)).slope


def warmed(options, it, side, everywhere=False, **environment):
    """Starts a server, and waits until it has sent the whole world to one proxy, or to a proxy in each cluster."""
    server = Server(options, side, it, **environment)
    with server.ended_on_fault():
        proxies = it.clusters if everywhere else 1
        with running(Load(options, it, server, proxies, "--expect-sync", it.services)) as first:
            first.in_sync()
        server.settle()
    return server


def spent(server, changes, seconds, act=None):
    """Returns the CPU seconds of the server in a window of `seconds`, with `changes` evenly spaced calls of `act(number)`."""
    server.settle()
    before, begun = server.cpu(), time.monotonic()
    sleep_until = lambda moment: time.sleep(max(0, begun + moment - time.monotonic()))
    for number in range(changes):
        act(number)
        sleep_until((number + 1) * seconds / changes)
    sleep_until(seconds)
    # The effects of the last call may not have arrived yet.
    time.sleep(0.5)
    return server.cpu() - before


def of_each(server, changes, seconds, act, idle=None):
    """Returns the CPU seconds per change, without the CPU time of the idle server."""
    if idle is None:
        idle = spent(server, 0, seconds)
    return (spent(server, changes, seconds, act) - idle) / changes


def floor(options, connections, size):
    """Returns the CPU seconds of the writer for a bare write of `size` bytes and a short response."""
    rounds = min(200, math.ceil(50_000 / connections))
    told = output(options.floor, str(connections), str(max(1, round(size))), str(rounds))
    return float(re.match(r"server ([\d.]+) us", told).group(1)) / 1e6
