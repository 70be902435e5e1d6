"""A server on this machine with the part of the hub's API that creates repositories and commits."""

import base64
import json
from contextlib import contextmanager

from json_server import JsonHandler, json_server

USER = "tester"
TOKEN = "hf_tests"


class HubServer:
    """What was sent to the server, and how it behaves."""

    def __init__(self):
        self.private = {}
        """Of each repository, by `models/NAMESPACE/NAME`."""
        self.files = {}
        """Files of the repositories that got a commit."""
        self.requests = []
        self.statuses = {}
        """To answer with, by a part of the path."""
        self.dies_at = None
        """A part of the path: from the first such request on, no request is answered."""
        self.url = None


@contextmanager
def serving():
    """A running `HubServer`."""
    hub = HubServer()
    with json_server(_Handler, hub) as hub.url:
        yield hub


def uses_hub(monkeypatch, hub, token=TOKEN):
    """Makes the hub's client in this process talk to a `HubServer`."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "nowhere")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)


class _Handler(JsonHandler):
    def respond(self, body):
        hub, path = self.state, self.path.partition("?")[0]
        hub.requests.append(path)
        if hub.dies_at is not None and hub.dies_at in path:
            hub.dies_at = ""  # every other path, too
            self.close_connection = True
            return
        status, answer = 404, {"error": "not found"}
        forced_status = next((code for part, code in hub.statuses.items() if part in path), None)
        if forced_status is not None:
            status, answer = forced_status, {"error": f"status {forced_status} was asked for"}
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, answer = 401, {"error": "Invalid username or password."}
        elif path == "/api/validate-yaml":
            status, answer = 200, {"errors": [], "warnings": []}
        elif path == "/api/repos/create":
            status, answer = self._create(json.loads(body))
        else:
            status, answer = self._of_repository(path, body)
        self.answer(status, answer)

    def _create(self, asked):
        kind = asked.get("type", "model")
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        address = f"{self.state.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if f"{kind}s/{name}" in self.state.private:
            return 409, {"error": "You already created this repo", "url": address}
        is_private = asked.get("private", asked.get("visibility") == "private")
        self.state.private[f"{kind}s/{name}"] = is_private
        return 200, {"url": address}

    def _of_repository(self, path, body):
        words = path.split("/")
        if len(words) < 5:
            return 404, {"error": path}
        _, _, kinds, user, name, *rest = words
        repository = f"{kinds}/{user}/{name}"
        if repository not in self.state.private:
            return 404, {"error": "Repository not found"}
        files = self.state.files.setdefault(repository, {})
        match rest:
            case ["preupload", "main"]:
                entries = json.loads(body)["files"]
                mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                return 200, {"files": [{"path": entry["path"], **mode} for entry in entries]}
            case ["commit", "main"]:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        files[value["path"]] = base64.b64decode(value["content"])
                oid = f"{len(files):040x}"
                address = f"{self.state.url}/{user}/{name}/commit/{oid}"
                return 200, {"commitUrl": address, "commitOid": oid, "success": True}
            case [] | ["revision", "main"]:
                about = {"id": f"{user}/{name}", "sha": "0" * 40, "siblings": [], "tags": []}
                return 200, about | {"private": self.state.private[repository]}
        return 404, {"error": path}
