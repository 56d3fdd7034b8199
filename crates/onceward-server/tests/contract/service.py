"""A service that does in transactions what its requests say, with psycopg 3. `service.js` does the same."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.types.json import Jsonb

DATABASE = sys.argv[1]


def call(sql, handed, name, arguments, said):
    if name == "order":
        sql.execute("INSERT INTO orders (name) VALUES ('tea')")
        return None
    if name == "setting":
        sql.execute("SELECT set_config(%s, %s, true)", arguments)
        return None
    if name == "complete":
        status, headers = arguments
        arguments = [status, Jsonb(headers), json.dumps(said).encode()]
    elif name == "advance":
        arguments = [arguments[0], Jsonb(arguments[1])]
    elif name == "stage":
        arguments = [*arguments[:-1], arguments[-1].encode()]
    places = ", ".join(["%s"] * (3 + len(arguments)))
    sql.execute(f"SELECT onceward.{name}({places})", [*handed, *arguments])
    [answer] = sql.fetchone()
    return None if answer == "" else answer


def transact(handed, calls, said):
    """One transaction; what its calls said, or the SQLSTATE with which one was refused."""
    with psycopg.connect(DATABASE) as connection:  # commits, or rolls back
        with connection.cursor() as sql:
            for name, *arguments in calls:
                answer = call(sql, handed, name, arguments, said)
                said.append([name, answer])
                if name == "advance" and answer is False:
                    # The rows of the step are there already.
                    connection.rollback()
                    return


def handle(headers, request):
    fence = int(headers["Onceward-Fence"]) + request.get("fence", 0)
    handed = [headers["Onceward-Operation"], headers["Onceward-Attempt-Id"], fence]
    said = []
    for calls in request["attempts"][int(headers.get("Onceward-Attempt", 1)) - 1]:
        try:
            transact(handed, calls, said)
        except psycopg.Error as error:
            said.append(["refused", error.sqlstate])
    return said


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(handle(self.headers, request)).encode()
        # Whoever has completed is not asked; for others it means that a retry may run.
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    print(f"listening on 127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
