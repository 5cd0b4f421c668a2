"""Scenario about the operator's page: the server's cost of a hundred open pages, without changes and with very many changes."""

import asyncio
import contextlib
import json
import math
import re
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

from processes import Load, running, world
from windows import scaled, spent, warmed

PAGES = 100
RATE = 100
SECONDS = 20
# The cost of changes varies more between windows than the cost of pages, so pages are shown and hidden in turns.
TURNS, TURN_SECONDS = 8, 10
# The paths that the map requests.
PATHS = ("/debug/clusters", "/debug/networks", "/debug/summary")
SCRIPT = (Path(__file__).resolve().parent.parent / "crates/server/src/admin/page/api.js").read_text()
# The delays in the page's script, in seconds.
PAUSES = {name: int(re.search(rf"^const {name} = ([\d_]+);", SCRIPT, re.M)[1]) / 1e3 for name in ("PAUSE", "QUIET", "SETTLES", "LEAST")}


def pages(options, side):
    """Opens pages on the map. Pages for which the server has no free listener poll, as the page's script does."""
    with world(options, scaled(options, 1000)) as it, running(warmed(options, it, side)) as server:
        token = server.log.parent / "state/admin-token"
        if not server.admin or not token.exists():
            return {}
        with running(Load(options, it, server, scaled(options, 1000), "--subscribe", "0.05")) as load:
            load.in_sync()
            change = lambda _: it.change()
            busy = lambda: spent(server, RATE * TURN_SECONDS, TURN_SECONDS, change) / TURN_SECONDS * 100
            without = spent(server, 0, SECONDS)
            with open_pages(server.admin, token.read_text().strip()) as (asked, show):
                # Wait until all pages are open and idle.
                time.sleep(PAUSES["QUIET"] + 5)
                seen = [asked()]
                idle = spent(server, 0, SECONDS) - without
                seen.append(asked())
                alone, more, listening = [], [], 0
                told = dict.fromkeys(seen[0], 0)
                for turn in range(TURNS):
                    used = {}
                    for shown in (True, False) if turn % 2 else (False, True):
                        listening = max(listening, show(shown))
                        before = asked()
                        used[shown] = busy()
                        told = {what: told[what] + now - before[what] for what, now in asked().items()}
                    alone.append(used[False])
                    more.append(used[True] - used[False])
    spread = statistics.stdev(more) / math.sqrt(TURNS)
    print(f"pages: {statistics.mean(more):.2f} % of a core, +- {spread:.2f}, of {' '.join(f'{one:.1f}' for one in more)}", file=sys.stderr)
    quiet = (seen[1]["answers"] - seen[0]["answers"]) / SECONDS
    each = {what: number / TURNS / TURN_SECONDS for what, number in told.items()}
    return {
        f"{PAGES} pages: server CPU, % of a core": idle / SECONDS * 100,
        f"{PAGES} pages, {RATE} changes/s: server CPU, % of a core": statistics.mean(more),
        # The reference for the two figures above.
        "no page: server CPU, % of a core": without / SECONDS * 100,
        f"no page, {RATE} changes/s: server CPU, % of a core": statistics.mean(alone),
        f"{PAGES} pages: that receive changes": listening,
        f"{PAGES} pages: answers/s": quiet,
        f"{PAGES} pages, {RATE} changes/s: answers/s": each["answers"],
        f"{PAGES} pages, {RATE} changes/s: sent kB/s": each["bytes"] / 1e3,
    }


@contextlib.contextmanager
def open_pages(admin, token):
    """Yields two functions: one returns the counters so far, the other shows or hides all pages and returns the number of listeners."""
    cookie = session(admin, token)
    loop, seen = asyncio.new_event_loop(), {"listening": 0, "answers": 0, "bytes": 0}
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    all_pages = [Page(admin, cookie, seen) for _ in range(PAGES)]
    all_of = asyncio.run_coroutine_threadsafe(everybody(all_pages), loop)

    def show(visible):
        for page in all_pages:
            loop.call_soon_threadsafe(page.turn, visible)
        until = time.monotonic() + 10
        while seen["listening"] != (PAGES if visible else 0) and time.monotonic() < until:
            time.sleep(0.05)
        return seen["listening"]

    try:
        yield lambda: dict(seen), show
        if all_of.done():
            all_of.result()
    finally:
        all_of.cancel()
        time.sleep(0.2)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def session(admin, token):
    """Returns the cookie of a browser session."""
    asked = urllib.request.Request(f"http://{admin}/api/login-code", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked) as answer:
        code = json.load(answer)["code"]
    stays = type("Stays", (urllib.request.HTTPRedirectHandler,), {"redirect_request": lambda *_: None})
    try:
        urllib.request.build_opener(stays).open(f"http://{admin}/login?code={code}")
    except urllib.error.HTTPError as redirected:
        return redirected.headers["Set-Cookie"].split(";")[0]


async def everybody(all_pages):
    # Pages open one after another, so that their periodic requests are spread evenly.
    await asyncio.gather(*(page.show(number / PAGES * PAUSES["QUIET"]) for number, page in enumerate(all_pages)))


class Page:
    """Simulates the page's script: refreshes all data on a change, once more when changes have settled, and periodically."""

    def __init__(self, admin, cookie, seen):
        self.admin, self.cookie, self.seen = admin, cookie, seen
        # A browser uses a connection for each concurrent request.
        self.asks = [Connection(admin, cookie, path, seen) for path in PATHS]
        self.news = asyncio.Event()
        self.listening = None
        self.listens = self.opened = False
        self.asked = -math.inf
        self.told = self.settled = math.inf

    async def show(self, begins):
        await asyncio.sleep(begins)
        self.turn(True)
        try:
            while True:
                due = min(self.told, self.settled, self.asked + PAUSES["QUIET" if self.listens else "PAUSE"])
                wait = max(0.001, due - time.monotonic()) if self.listening else None
                try:
                    await asyncio.wait_for(self.news.wait(), wait)
                    self.news.clear()
                except TimeoutError:
                    await self.refresh()
        finally:
            self.turn(False)

    def turn(self, visible):
        """Shows or hides the page. A hidden page neither listens nor sends requests."""
        if self.listening:
            self.listening.cancel()
        self.listening = asyncio.create_task(self.listen()) if visible else None
        self.told, self.settled = (time.monotonic() if visible else math.inf), math.inf
        self.news.set()

    async def refresh(self):
        now = time.monotonic()
        self.asked, self.told = now, math.inf
        self.settled = self.settled if self.settled > now else math.inf
        await asyncio.gather(*(connection.get() for connection in self.asks))

    def hear(self):
        now = time.monotonic()
        self.settled = now + PAUSES["SETTLES"]
        wait = self.asked + PAUSES["LEAST"] - now
        if self.listens or wait <= 0:
            self.told = now + max(0, wait)
        self.listens = True
        self.news.set()

    async def listen(self):
        """Listens for changes until the server refuses the listener."""
        while True:
            reader, writer = await asyncio.open_connection(*self.admin.rsplit(":", 1), limit=1 << 24)
            try:
                writer.write(f"GET /api/changes HTTP/1.1\r\nHost: {self.admin}\r\nCookie: {self.cookie}\r\n\r\n".encode())
                if b" 200 " not in await reader.readline():
                    return
                self.seen["listening"] += 1
                try:
                    while line := await reader.readline():
                        if line.startswith(b"event: change"):
                            self.hear()
                finally:
                    self.seen["listening"] -= 1
            finally:
                self.listens = False
                writer.close()


class Connection:
    """A persistent connection for one path, reopened after the server has closed it."""

    def __init__(self, admin, cookie, path, seen):
        self.admin, self.path, self.seen, self.streams = admin, path, seen, None
        self.head = f"GET {path} HTTP/1.1\r\nHost: {admin}\r\nCookie: {cookie}\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
        self.tag = ""

    async def get(self):
        for _ in range(3):
            try:
                self.streams = self.streams or await asyncio.open_connection(*self.admin.rsplit(":", 1), limit=1 << 24)
                reader, writer = self.streams
                writer.write(f"{self.head}{self.tag}\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                status = head.split(" ", 2)[1]
                if status not in ("200", "304"):
                    raise SystemExit(f"benches/run: pages: {self.path}: {head.splitlines()[0]}")
                if tag := re.search(r"^etag: (.*)\r$", head, re.M):
                    self.tag = f"If-None-Match: {tag[1]}\r\n"
                if status == "200":
                    await reader.readexactly(int(re.search(r"^content-length: (\d+)", head, re.M)[1]))
                self.seen["answers"] += 1
                self.seen["bytes"] += len(head) + (int(re.search(r"^content-length: (\d+)", head, re.M)[1]) if status == "200" else 0)
                return
            except (ConnectionError, asyncio.IncompleteReadError):
                self.streams = None
        raise SystemExit(f"benches/run: pages: {self.path}: no response")
