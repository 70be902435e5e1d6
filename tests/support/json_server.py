"""A server on this machine that answers in JSON."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JsonHandler(BaseHTTPRequestHandler):
    """Answers requests; `state` is what the server was given."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the receipt of its headers

    @property
    def state(self):
        return self.server.state

    def do_GET(self):
        self.respond(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    do_POST = do_GET

    def respond(self, body):
        """Calls `answer`, or closes the connection."""
        raise NotImplementedError

    def answer(self, status, fields):
        data = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def json_server(handler, state):
    """The address of a running server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.state = True, state
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
