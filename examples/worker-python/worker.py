"""A worker: it claims jobs from the gateway, works on them, and says how each one ended.

Needs Python 3.8 and nothing else. Write a function per job type and list it in HANDLERS.
"""

import http.client
import json
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("SEKALI_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("SEKALI_TOKEN")  # an API key with the permission work, where auth.mode wants one
SLOTS = int(os.environ.get("SLOTS", "4"))  # jobs at the same time
GRACE = float(os.environ.get("GRACE", "20"))  # seconds for running jobs after SIGTERM; then they are handed back
WAIT = int(min(20, GRACE))  # seconds that a claim waits for a job; none waits any more when jobs are handed back


class Permanent(Exception):
    """Raised by a handler: trying again would not help."""


class Stopped(Exception):
    """Raised by a handler that was told to stop and has stopped."""


def thumbnail(payload, execution):
    """Makes a gray image smaller: each square of `by` times `by` pixels becomes its mean."""
    try:
        pixels, by = payload["pixels"], payload.get("by", 2)
        squares = [[[p for row in pixels[y:y + by] for p in row[x:x + by]] for x in range(0, len(pixels[y]), by)]
                   for y in range(0, len(pixels), by)]
        return {"pixels": [[sum(square) // len(square) for square in row] for row in squares]}
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise Permanent(f"not an image: {wrong!r}")


def sleep(payload, execution):
    """Stands for work that takes a while. It looks at execution.stop: only so can it be stopped in the middle."""
    if execution.stop.wait(payload["seconds"]):
        raise Stopped
    return {"slept": payload["seconds"]}


HANDLERS = {"thumbnail": thumbnail, "sleep": sleep}


class Away(Exception):
    """No answer came, or one that says: later. The same call may be sent again, always."""

    def __init__(self, why, later=0):
        super().__init__(why)
        self.later = later  # seconds


def post(path, body, timeout=10):
    """Sends one call. Returns the answer's status, its document, and after how many seconds to ask again."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})}
    text = json.dumps(body, separators=(",", ":")).encode()
    request = urllib.request.Request(URL + path, text, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response), retry_after(response)
    except urllib.error.HTTPError as refusal:
        with refusal:
            text = refusal.read().decode(errors="replace")
        if refusal.code in (408, 429) or refusal.code >= 500:
            raise Away(text, retry_after(refusal))
        return refusal.code, text, 0
    except (OSError, http.client.HTTPException, ValueError) as broken:  # refused, timed out, broken off
        raise Away(broken)


def retry_after(response):
    text = response.headers.get("Retry-After", "")
    return min(int(text), 60) if text.isdigit() else 0


def pauses():
    """How long to wait before each repetition: longer and longer, and no two workers alike."""
    longest = 0.2
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(longest * 2, 5)


class Execution:
    """A job that this worker holds, for as long as its lease lasts."""

    def __init__(self, document):
        self.id, self.key, self.type, self.payload = (document[name] for name in ("id", "key", "type", "payload"))
        self.attempt, self.fencing_token = document["attempt"], document["fencing_token"]
        self.lease_token = document["lease_token"]
        self.stop = threading.Event()  # set: the work is to be given up
        self.lost = False  # the job is another's by now, and what comes out of this work is thrown away
        self.ending = False  # the work is over, and its end is being told
        self.extend(document["lease_ms"])

    def extend(self, lease_ms):
        self.third = max(lease_ms / 3000, 0.1)
        self.beat_at = time.monotonic() + self.third
        self.lapses_at = time.monotonic() + lease_ms / 1000

    def lose(self, why):
        self.lost = True
        self.stop.set()
        print(f"{self.id}: the lease is lost: {why}", flush=True)

    def call(self, verb, body, timeout=10):
        return post(f"/executions/{self.id}/{verb}", {"lease_token": self.lease_token, **body}, timeout)


class Worker:
    def __init__(self):
        # Another name at every start: what an earlier process held is not ours.
        self.name = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.held = {}  # lease token -> Execution
        self.changed = threading.Condition()  # told when a job is let go, and when the worker stops
        self.stopping = threading.Event()
        self.claims = threading.Thread(target=self.claim_all, daemon=True)

    def run(self):
        """Works until SIGTERM or Ctrl-C."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            threading.Thread(target=self.beat_all, daemon=True).start()
            self.claims.start()
            print(f"{self.name} works for {URL}", flush=True)
            while True:  # not one endless wait: a signal that arrives at another thread would not end it
                time.sleep(0.5)
        except KeyboardInterrupt:
            self.drain()

    def claim_all(self):
        """Asks for as many jobs as there are free slots, one question after the other."""
        pause = pauses()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: len(self.held) < SLOTS or self.stopping.is_set())
                free = SLOTS - len(self.held)
            if self.stopping.is_set():
                return
            question = {"worker": self.name, "types": list(HANDLERS), "max": min(free, 100), "wait_seconds": WAIT}
            try:
                status, answer, later = post("/executions/claim", question, timeout=WAIT + 10)
            except Away as why:
                print(f"no answer to a claim: {why}", flush=True)
                self.stopping.wait(max(next(pause), why.later))
                continue
            if status != 200:  # an unknown type, or a token that may not: asking again changes nothing
                print(f"the gateway refuses: {answer}", file=sys.stderr, flush=True)
                os._exit(2)
            pause = pauses()
            for execution in map(Execution, answer["executions"]):
                self.held[execution.lease_token] = execution
                threading.Thread(target=self.work, args=(execution,), daemon=True).start()
            self.stopping.wait(later)  # 0, unless too many wait at the gateway

    def work(self, execution):
        """Does one job, and says how it ended."""
        try:
            if self.stopping.is_set():  # it came with the last answer
                raise Stopped
            verb, body = "complete", {"result": HANDLERS[execution.type](execution.payload, execution)}
            json.dumps(body)  # a result that is no JSON is a failure as well
        except Stopped:
            verb, body = "release", {}
        except BaseException as wrong:
            error = f"{type(wrong).__name__}: {wrong}"[:1000]
            verb, body = "fail", {"error": error, "retryable": not isinstance(wrong, Permanent)}
        execution.ending, execution.beat_at = True, time.monotonic() + execution.third
        if not execution.lost:
            self.tell(execution, verb, body)
        with self.changed:
            del self.held[execution.lease_token]
            self.changed.notify_all()

    def tell(self, execution, verb, body):
        """Sends the end of an attempt until it is answered: however often it arrives, it counts once."""
        for pause in pauses():
            try:
                status, answer, _ = execution.call(verb, body)
            except Away as why:
                time.sleep(max(pause, why.later))
                continue
            if status in (404, 410):
                execution.lose(f"{verb} came too late")
            elif status != 200 and verb == "complete":  # such as a result over limits.result
                verb, body = "fail", {"error": f"complete was refused: {answer}"[:1000], "retryable": False}
                continue
            elif status != 200:
                print(f"{execution.id}: {verb} was refused: {answer}", flush=True)
            return

    def beat_all(self):
        """The one timer: a heartbeat for each job when a third of its lease is over."""
        while True:
            time.sleep(0.05)
            for execution in list(self.held.values()):
                if time.monotonic() >= execution.beat_at and not execution.lost:
                    execution.beat_at = time.monotonic() + execution.third
                    threading.Thread(target=self.beat, args=(execution,), daemon=True).start()

    def beat(self, execution):
        try:
            status, answer, _ = execution.call("heartbeat", {}, timeout=execution.third)
        except Away:
            if time.monotonic() > execution.lapses_at and not execution.ending:  # somebody else may have it now
                execution.lose("no heartbeat was answered")
            return
        if status == 200:
            execution.extend(answer["lease_ms"])
            if answer["cancel_requested"]:
                execution.stop.set()
        elif not execution.ending:  # else it has just ended
            execution.lose("the heartbeat came too late")

    def drain(self):
        """Claims no more, lets running jobs end, and hands back what has not ended when the grace is over."""
        self.stopping.set()
        with self.changed:
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.held, GRACE)
        self.claims.join(5 if self.held else 1)  # its answer may be on its way, and must not be what is handed back now
        for execution in list(self.held.values()):
            execution.stop.set()
        with self.changed:
            self.changed.wait_for(lambda: not self.held, 1)
        for execution in list(self.held.values()):  # these handlers do not look at stop; they end with the process
            if not execution.ending:
                try:
                    execution.call("release", {}, timeout=2)
                except Away:
                    pass  # the lease will end


if __name__ == "__main__":
    Worker().run()
    os._exit(0)  # without waiting for handlers that do not end
