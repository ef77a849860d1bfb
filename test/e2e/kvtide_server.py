"""One `kvtide serve` of a test's own, on a free port. Every wait here has an end."""

import http.client
import json
import pathlib
import signal
import subprocess
import threading
import time
import urllib.parse

import openai

START_SECONDS = 120
REQUEST_SECONDS = 120


def eventually(what, seconds, probe):
    """The first truthy value of `probe()`; fails when none came in time."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        pause.wait(0.05)


class Server:
    def __init__(self, executable, folder, *flags, port=0):
        self.folder = pathlib.Path(folder)
        self.log = self.folder / "server.log"
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [executable, "serve", "--port", str(port), "--port-file", str(port_file), *flags]
        started = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def port_written():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log_end()}")
            return port_file.exists() and port_file.read_text().strip()

        try:
            self.port = int(eventually("the server listens", START_SECONDS, port_written))
        except BaseException:
            self.kill()
            raise
        self.start_seconds = time.monotonic() - started

    def log_end(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)

    def stop(self):
        """Graceful end; anything but status 0 is a failure."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end on SIGTERM:\n{self.log_end()}") from None
        if status != 0:
            raise AssertionError(f"the server ended with {status}:\n{self.log_end()}")

    # Speaking to it.

    def client(self, kind=openai.OpenAI):
        return kind(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=REQUEST_SECONDS)

    def raw(self, method, path, body=None, headers=None, seconds=REQUEST_SECONDS):
        """Status, headers and body as they came; `body` are bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, headers if headers is not None else {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def call(self, method, path, body=None, seconds=REQUEST_SECONDS):
        """The JSON of a call that must succeed."""
        status, _, text = self.raw(method, path, None if body is None else json.dumps(body).encode(), seconds=seconds)
        if status != 200:
            raise AssertionError(f"{method} {path}: {status} {text[:500]!r}")
        return json.loads(text)

    def tiers(self):
        return {tier["name"]: tier for tier in self.call("GET", "/kv/v1/tiers")["tiers"]}

    def stats(self):
        """The counters by their names in ServiceStats, whether the server groups them or not."""
        flat = {}
        for name, value in self.call("GET", "/kv/v1/stats").items():
            if isinstance(value, dict) and name != "hints":
                flat.update({inner if name == "engine" else f"{name}_{inner}": number for inner, number in value.items()})
            else:
                flat[name] = value
        return flat

    def hint(self, verb, session_id, hint_id):
        """The final receipt of one native hint: a deferred one is read again until it is done."""
        message = {"hints": [{"hint_id": hint_id, "verb": verb, "session_id": session_id}]}
        (receipt,) = self.call("POST", "/kv/v1/hints", message, seconds=5)["receipts"]
        if receipt["status"] == "deferred":
            def done():
                now = self.call("GET", f"/kv/v1/hints/{urllib.parse.quote(hint_id)}")
                return now if now["status"] != "deferred" else None
            receipt = eventually(f"{verb} of {session_id} is done", 20, done)
        return receipt

    def end_sessions(self):
        """Ends every session that the server knows."""
        for _ in range(100):
            sessions = [s for s in self.call("GET", "/kv/v1/sessions?limit=100")["sessions"] if s["state"] != "ended"]
            if not sessions:
                return
            for session in sessions:
                self.call("DELETE", f"/kv/v1/sessions/{urllib.parse.quote(session['session_id'], safe='')}")
        raise AssertionError("sessions do not end")

    def quiet_tiers(self):
        """The tiers once nothing runs and nothing is copied any more."""
        last = {}

        def settled():
            stats = self.stats()
            now = (self.tiers(), stats["copies_blocks_out"] if "copies_blocks_out" in stats else stats["blocks_copied_out"])
            same = now == last.get("now") and stats["requests_running"] == 0 and stats["leases"] == 0
            last["streak"] = last.get("streak", 0) + 1 if same else 0
            last["now"] = now
            return last["streak"] >= 4
        eventually("the server is quiet", 30, settled)
        return last["now"][0]

    def rss_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


class BudgetWatch:
    """Looks at the tiers all the time while it is open; a budget exceeded even once fails on leaving."""

    def __init__(self, server):
        self.server = server
        self.looks = 0
        self.excess = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def look(self):
        for tier in self.server.tiers().values():
            if max(tier["used_bytes"], tier["peak_bytes"]) > tier["budget_bytes"]:
                self.excess.append(tier)
        self.looks += 1

    def watch(self):
        while not self.over.wait(0.1):
            try:
                self.look()
            except (OSError, http.client.HTTPException) as error:
                self.excess.append(repr(error))
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        self.thread.join(timeout=REQUEST_SECONDS)
        if kind is None:
            self.look()
            assert not self.excess, f"budget exceeded, or tiers unanswered: {self.excess[:3]}"
