"""Servers on this machine that give log-probabilities of prompts.

`serving` computes them by each protocol; it can fail and lie. `replaying` gives recorded answers of
a real vLLM server (`record_vllm.py`).
"""

import json
import threading
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from json_server import JsonHandler, json_server

RECORDED = Path(__file__).with_name("vllm_answers.json")


def log_probability(ids, place):
    """Of the id at a place; a function of what comes before it, as a model's."""
    if place == 0:
        return None
    return -(1 + (31 * ids[place] + 17 * ids[place - 1] + place) % 1000 / 128)


def most_likely(ids, place, count):
    """Log-probabilities and ids at a place, not those of a real model."""
    return [(-1.0 - rank, (7 * ids[place - 1] + 11 * rank) % 400) for rank in range(count)]


class State:
    """How the server behaves, and what it was asked."""

    def __init__(self):
        self.models = [{"id": "tiny", "max_model_len": 4096, "owned_by": "vllm"}]
        self.statuses = []
        """Of the next requests, before it answers well; 0: the connection is closed."""
        self.change = lambda logprobs, ids: logprobs
        """Of the log-probabilities of a request."""
        self.tops = most_likely
        self.ids = lambda ids: ids
        """The ids that it says it has read."""
        self.asked = []
        self.most = self.under_way = 0
        self.gate = None
        self.lock = threading.Lock()


def reply(path, body, state):
    ids = body.get("input_ids") or body["prompt"]
    logprobs = state.change([log_probability(ids, place) for place in range(len(ids))], ids)
    read = state.ids(ids)
    count = body.get("prompt_logprobs", 0) or body.get("top_logprobs_num", 0)
    places = range(len(logprobs) if count else 0)
    tops = [state.tops(ids, place, count) if 0 < place < len(ids) else [] for place in places]
    if path == "/generate":
        tokens = [[logprob, number, None] for logprob, number in zip(logprobs, read, strict=False)]
        meta = {"input_token_logprobs": tokens}
        if count:
            meta["input_top_logprobs"] = [[[*top, None] for top in at] or None for at in tops]
        return {"text": "", "meta_info": meta}
    choice = {"index": 0, "text": "x", "finish_reason": "length"}
    if body.get("echo"):
        return {"choices": [choice | {"logprobs": {"token_logprobs": [*logprobs, -1.0]}}]}
    prompt = [
        None
        if logprob is None
        else {
            str(n): {"logprob": p, "rank": 1, "decoded_token": "x"}
            for p, n in [*at, (logprob, number)]
        }
        for logprob, number, at in zip_longest(
            logprobs, ids[: len(logprobs)], tops or [[]] * len(logprobs), fillvalue=0
        )
    ]
    return {"choices": [choice | {"prompt_logprobs": prompt, "prompt_token_ids": read}]}


class Handler(JsonHandler):
    """Computes."""

    def respond(self, body):
        state = self.state
        if self.path == "/get_model_info":
            return self.answer(200, {"model_path": state.models[0]["id"]})
        if self.command == "GET":
            return self.answer(200, {"object": "list", "data": state.models})
        body = json.loads(body)
        with state.lock:
            state.asked.append((self.path, body))
            status = state.statuses.pop(0) if state.statuses else 200
            state.under_way += 1
            state.most = max(state.most, state.under_way)
        if state.gate is not None:
            state.gate.wait(10)
        with state.lock:
            state.under_way -= 1
        if status == 0:
            self.close_connection = True
            return None
        if status != 200:
            return self.answer(status, {"error": {"message": "as asked"}})
        return self.answer(200, reply(self.path, body, state))


class Replay(JsonHandler):
    """Answers what was recorded, and nothing else."""

    def respond(self, body):
        body = json.loads(body) if body else None
        for entry in self.state:
            if (entry["method"], entry["path"], entry["body"]) == (self.command, self.path, body):
                return self.answer(entry["status"], entry["answer"])
        return self.answer(418, {"error": "not recorded; run tests/support/record_vllm.py"})


def replaying(exchanges):
    """Address of a server with recorded answers, as a context."""
    return json_server(Replay, exchanges)


@contextmanager
def serving():
    """(address, State) of a server that computes."""
    state = State()
    with json_server(Handler, state) as url:
        yield url, state
