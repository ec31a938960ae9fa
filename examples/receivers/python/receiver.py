"""A receiver that does each job once, however often it is asked.

The effect, a receipt, is a row with a unique key, which names the job.
"""

import os
import sqlite3
import uuid
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = os.environ.get("RECEIPTS", "receipts.db")
HOST, PORT = os.environ.get("LISTEN", "127.0.0.1:9090").rsplit(":", 1)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key")  # the same on every attempt
        if not key:
            return self.send_error(400, "send an Idempotency-Key")
        with closing(sqlite3.connect(FILE, timeout=30)) as db:
            with db:  # committed before the answer: afterwards nobody asks again
                sql = "insert into receipts (key, receipt) values (?, ?) on conflict do nothing"
                made = db.execute(sql, (key, str(uuid.uuid4()))).rowcount
        self.show(key, made)

    def do_GET(self):  # what became of the job? (reconcile_url)
        key = self.headers.get("Idempotency-Key")
        if not key:
            return self.send_error(400, "send an Idempotency-Key")
        self.show(key, False)

    def show(self, key, made):
        with closing(sqlite3.connect(FILE, timeout=30)) as db:
            found = db.execute("select receipt from receipts where key = ?", (key,)).fetchone()
        if not found:
            return self.send_error(404, "not done")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Idempotent-Replayed", "false" if made else "true")
        self.end_headers()
        self.wfile.write(b'{"receipt":"%s"}' % found[0].encode())


if __name__ == "__main__":
    with closing(sqlite3.connect(FILE)) as db:
        db.execute("create table if not exists receipts (key text primary key, receipt text not null)")
    server = ThreadingHTTPServer((HOST, int(PORT)), Receiver)
    print("listening on http://%s:%d" % server.server_address, flush=True)
    server.serve_forever()
