"""What scenarios share: sizes, servers that hold a world, and what something costs in a window of time."""

import math
import re
import statistics
import time

from processes import Load, Server, output, running

# What a default sidecar asks for besides upstream clusters and assignments.
SIDECAR = ("--routes", "--name-table")


def scaled(options, number):
    return max(1, round(number * options.scale))


def slope(points):
    """How much y grows by with each x, of points (x, y)."""
    return statistics.linear_regression(*zip(*points)).slope


def warmed(options, it, side, everywhere=False, **environment):
    """A server that holds the whole world, and has told one proxy of it, or one in each cluster."""
    server = Server(options, side, it, **environment)
    with server.ended_on_fault():
        proxies = it.clusters if everywhere else 1
        with running(Load(options, it, server, proxies, "--expect-sync", it.services)) as first:
            first.in_sync()
        server.settle()
    return server


def spent(server, changes, seconds, act=None):
    """CPU seconds of the server in so many seconds, in which so many times `act(number)` is called, evenly."""
    server.settle()
    before, begun = server.cpu(), time.monotonic()
    sleep_until = lambda moment: time.sleep(max(0, begun + moment - time.monotonic()))
    for number in range(changes):
        act(number)
        sleep_until((number + 1) * seconds / changes)
    sleep_until(seconds)
    # What the last one is about may still be on its way.
    time.sleep(0.5)
    return server.cpu() - before


def of_each(server, changes, seconds, act, idle=None):
    """CPU seconds of each change. What the server costs whether anything changes or not is not in it."""
    if idle is None:
        idle = spent(server, 0, seconds)
    return (spent(server, changes, seconds, act) - idle) / changes


def floor(options, connections, size):
    """CPU seconds that a bare write of so many bytes and a short answer take the writer."""
    rounds = min(200, math.ceil(50_000 / connections))
    told = output(options.floor, str(connections), str(max(1, round(size))), str(rounds))
    return float(re.match(r"server ([\d.]+) us", told).group(1)) / 1e6
