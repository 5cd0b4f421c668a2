"""Scenario about the operator's page: what a hundred of them cost the server, while nothing changes and while very much does."""

import asyncio
import contextlib
import json
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
PATHS = ("/debug/clusters", "/debug/networks", "/debug/proxies", "/debug/mesh", "/debug/policy", "/debug/sources", "/debug/rollout")
SCRIPT = Path(__file__).resolve().parent.parent / "src/admin/page/api.js"


def pages(options, side):
    """Pages that are open on the map; those that find no place to listen ask now and then, as the page's script does."""
    with world(options, scaled(options, 1000)) as it, running(warmed(options, it, side)) as server:
        token = server.log.parent / "state/admin-token"
        if not server.admin or not token.exists():
            return {}
        with running(Load(options, it, server, scaled(options, 1000), "--subscribe", "0.05")) as load:
            load.in_sync()
            change = lambda _: it.change()
            without = [spent(server, 0, SECONDS), spent(server, RATE * SECONDS, SECONDS, change)]
            with open_pages(server.admin, token.read_text().strip()) as asked:
                time.sleep(5)
                with_them = [spent(server, 0, SECONDS), spent(server, RATE * SECONDS, SECONDS, change)]
                answers = asked()
    idle, busy = ((b - a) / SECONDS * 100 for a, b in zip(without, with_them))
    return {
        f"{PAGES} pages: server CPU, % of a core": idle,
        f"{PAGES} pages, {RATE} changes/s: server CPU, % of a core": busy,
        f"{PAGES} pages: answers": answers,
    }


@contextlib.contextmanager
def open_pages(admin, token):
    """Gives how many answers there were."""
    cookie = session(admin, token)
    loop, seen = asyncio.new_event_loop(), [0]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    all_of = asyncio.run_coroutine_threadsafe(everybody(admin, cookie, seen), loop)
    try:
        yield lambda: seen[0]
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
    script = SCRIPT.read_text()
    pause = lambda name: int(re.search(rf"^const {name} = ([\d_]+);", script, re.M)[1]) / 1e3
    every = [page(admin, cookie, seen, pause("PAUSE"), pause("SETTLES"), pause("LEAST"), number / PAGES) for number in range(PAGES)]
    await asyncio.gather(*every)


async def page(admin, cookie, seen, pause, settles, least, begins):
    """One page: asks for all that it shows when it is told of a change, when that has settled, and now and then."""
    await asyncio.sleep(begins * pause)
    told = asyncio.Event()
    listening = asyncio.create_task(listen(admin, cookie, told))
    due = time.monotonic()
    settled = None
    asks = Connection(admin, cookie)
    try:
        while True:
            if time.monotonic() >= due or (settled and time.monotonic() >= settled):
                settled = settled if settled and time.monotonic() < settled else None
                for path in PATHS:
                    await asks.get(path)
                    seen[0] += 1
                due = time.monotonic() + pause
            moments = [due, *([settled] if settled else [])]
            try:
                await asyncio.wait_for(told.wait(), max(0.001, min(moments) - time.monotonic()))
            except TimeoutError:
                continue
            told.clear()
            settled = time.monotonic() + settles
            due = min(due, max(time.monotonic(), due - pause + least))
    finally:
        listening.cancel()


async def listen(admin, cookie, told):
    """Until the server has no place for another listener."""
    reader, writer = await asyncio.open_connection(*admin.rsplit(":", 1), limit=1 << 24)
    try:
        writer.write(f"GET /api/changes HTTP/1.1\r\nHost: {admin}\r\nCookie: {cookie}\r\n\r\n".encode())
        if b" 200 " not in await reader.readline():
            return
        while line := await reader.readline():
            if line.startswith(b"event: change"):
                told.set()
    finally:
        writer.close()


class Connection:
    """A connection that is kept, and opened anew once the server has ended it."""

    def __init__(self, admin, cookie):
        self.admin, self.cookie, self.streams = admin, cookie, None

    async def get(self, path):
        for _ in range(3):
            try:
                self.streams = self.streams or await asyncio.open_connection(*self.admin.rsplit(":", 1), limit=1 << 24)
                reader, writer = self.streams
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.admin}\r\nCookie: {self.cookie}\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))
                if " 200 " not in head.splitlines()[0]:
                    raise SystemExit(f"benches/run: pages: {path}: {head.splitlines()[0]}")
                return
            except (ConnectionError, asyncio.IncompleteReadError):
                self.streams = None
        raise SystemExit(f"benches/run: pages: {path}: no answer")
