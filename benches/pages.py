"""Scenario about the operator's page: what a hundred of them cost the server, while nothing changes and while very much does."""

import asyncio
import contextlib
import json
import math
import re
import threading
import time
import urllib.request
from pathlib import Path

from processes import Load, running, world
from windows import scaled, spent, warmed

PAGES = 100
RATE = 100
SECONDS = 20
# What the map asks for.
PATHS = ("/debug/clusters", "/debug/networks", "/debug/summary")
SCRIPT = (Path(__file__).resolve().parent.parent / "src/admin/page/api.js").read_text()
# What the page's script waits, in seconds.
PAUSES = {name: int(re.search(rf"^const {name} = ([\d_]+);", SCRIPT, re.M)[1]) / 1e3 for name in ("PAUSE", "QUIET", "SETTLES", "LEAST")}


def pages(options, side):
    """Pages that are open on the map; those that find no place to listen ask every so often, as the page's script does."""
    with world(options, scaled(options, 1000)) as it, running(warmed(options, it, side)) as server:
        token = server.log.parent / "state/admin-token"
        if not server.admin or not token.exists():
            return {}
        with running(Load(options, it, server, scaled(options, 1000), "--subscribe", "0.05")) as load:
            load.in_sync()
            change = lambda _: it.change()
            without = [spent(server, 0, SECONDS), spent(server, RATE * SECONDS, SECONDS, change)]
            with open_pages(server.admin, token.read_text().strip()) as asked:
                # Until all have been opened, and what that changed has settled.
                time.sleep(PAUSES["QUIET"] + 5)
                with_them, seen = [], [asked()]
                for changes in (0, RATE * SECONDS):
                    with_them.append(spent(server, changes, SECONDS, change))
                    seen.append(asked())
    idle, busy = ((b - a) / SECONDS * 100 for a, b in zip(without, with_them))
    none = [seconds / SECONDS * 100 for seconds in without]
    each = lambda what, at: (seen[at + 1][what] - seen[at][what]) / SECONDS
    return {
        f"{PAGES} pages: server CPU, % of a core": idle,
        f"{PAGES} pages, {RATE} changes/s: server CPU, % of a core": busy,
        # Beside which the two above are read: of less than a tenth of it they say little.
        "no page: server CPU, % of a core": none[0],
        f"no page, {RATE} changes/s: server CPU, % of a core": none[1],
        f"{PAGES} pages: that are told of changes": seen[-1]["listening"],
        f"{PAGES} pages: answers/s": each("answers", 0),
        f"{PAGES} pages, {RATE} changes/s: answers/s": each("answers", 1),
        f"{PAGES} pages, {RATE} changes/s: sent kB/s": each("bytes", 1) / 1e3,
    }


@contextlib.contextmanager
def open_pages(admin, token):
    """Gives what has come of them so far."""
    cookie = session(admin, token)
    loop, seen = asyncio.new_event_loop(), {"listening": 0, "answers": 0, "bytes": 0}
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    all_of = asyncio.run_coroutine_threadsafe(everybody(admin, cookie, seen), loop)
    try:
        yield lambda: dict(seen)
        if all_of.done():
            all_of.result()
    finally:
        all_of.cancel()
        time.sleep(0.2)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def session(admin, token):
    """A browser's cookie."""
    asked = urllib.request.Request(f"http://{admin}/api/login-code", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked) as answer:
        code = json.load(answer)["code"]
    stays = type("Stays", (urllib.request.HTTPRedirectHandler,), {"redirect_request": lambda *_: None})
    try:
        urllib.request.build_opener(stays).open(f"http://{admin}/login?code={code}")
    except urllib.error.HTTPError as redirected:
        return redirected.headers["Set-Cookie"].split(";")[0]


async def everybody(admin, cookie, seen):
    # Opened one after another, so that what all ask now and then is asked evenly.
    await asyncio.gather(*(Page(admin, cookie, seen).show(number / PAGES * PAUSES["QUIET"]) for number in range(PAGES)))


class Page:
    """One page, as its script has it: asks for all that it shows when it is told of a change, once more when that has settled, and now and then."""

    def __init__(self, admin, cookie, seen):
        self.admin, self.cookie, self.seen = admin, cookie, seen
        # A browser asks for what it wants on as many connections.
        self.asks = [Connection(admin, cookie, path, seen) for path in PATHS]
        self.news = asyncio.Event()
        self.listens = self.opened = False
        self.asked = -math.inf
        self.told = self.settled = math.inf

    async def show(self, begins):
        await asyncio.sleep(begins)
        listening = asyncio.create_task(self.listen())
        try:
            await self.refresh()
            while True:
                due = min(self.told, self.settled, self.asked + PAUSES["QUIET" if self.listens else "PAUSE"])
                try:
                    await asyncio.wait_for(self.news.wait(), max(0.001, due - time.monotonic()))
                    self.news.clear()
                except TimeoutError:
                    await self.refresh()
        finally:
            listening.cancel()

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
        """Until the server has no place for another listener, or has none for any."""
        while True:
            reader, writer = await asyncio.open_connection(*self.admin.rsplit(":", 1), limit=1 << 24)
            try:
                writer.write(f"GET /api/changes HTTP/1.1\r\nHost: {self.admin}\r\nCookie: {self.cookie}\r\n\r\n".encode())
                if b" 200 " not in await reader.readline():
                    return
                self.seen["listening"] += 1
                while line := await reader.readline():
                    if line.startswith(b"event: change"):
                        self.hear()
                self.seen["listening"] -= 1
            finally:
                self.listens = False
                writer.close()


class Connection:
    """A connection for one path that is kept, and opened anew once the server has ended it."""

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
        raise SystemExit(f"benches/run: pages: {self.path}: no answer")
