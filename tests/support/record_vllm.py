"""Records what a real vLLM server answers to `ServerScorer`, for the tests of every run.

    VOCAGNO_VLLM_PYTHON=target/servers/bin/python python tests/support/record_vllm.py

The model is tiny and random, its tokenizer is trained on texts of the tests. Writes the answers,
and the losses of the same windows by our own scorer, to `vllm_answers.json` next to this file.
"""

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from families import TEXTS
from vllm_server import PYTHON, VllmServer, save_teacher
from vocagno import TokenSpans
from vocagno.config.teacher import TeacherConfig
from vocagno.integrations.scoring_server import ServerError, ServerScorer
from vocagno.teacher.transformers_engine import load_scorer
from vocagno.teacher.windows import Window

PATH = Path(__file__).with_name("vllm_answers.json")
MAX_MODEL_LEN = 66
"""Of the server: `TeacherConfig.context` 64, and two more."""


def windows(spans):
    """Prose, formulas, and bytes of characters that no token has whole."""
    texts = [TEXTS[0], TEXTS[1][:40], "∑ x² 😊", TEXTS[5][:30]]
    ids = [spans.encode([text]).ids.astype(np.int64) for text in texts]
    return [Window(text_ids[:40], 1 + 3 * (number % 2)) for number, text_ids in enumerate(ids)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = save_teacher(Path(folder) / "model")
        spans = TokenSpans(model)
        config = TeacherConfig(model=str(model), context=MAX_MODEL_LEN - 2)
        asked = windows(spans)
        losses = dict(load_scorer(config, spans, torch.device("cpu")).score(asked))
        log = Path(folder) / "log"
        with VllmServer(model, log, max_model_len=MAX_MODEL_LEN) as server:
            exchanges = recorded(server.url, asked)
    answers = [exchange["answer"] for exchange in exchanges]
    record = {
        "server": next(filter(None, (a.get("system_fingerprint") for a in answers))),
        "context": config.context,
        "windows": [
            {"ids": w.ids.tolist(), "asked_from": w.asked_from, "losses": losses[n].tolist()}
            for n, w in enumerate(asked)
        ],
        "exchanges": exchanges,
    }
    lines = json.dumps(record, ensure_ascii=False).replace(', {"method"', ',\n{"method"')
    PATH.write_text(lines + "\n", encoding="utf-8")
    print(f"{PATH.name}: {len(exchanges)} answers, {PATH.stat().st_size:,} bytes")


def recorded(url, asked):
    """Requests with status and answer: what scoring asks for, and what the server refuses."""
    exchanges = []

    def keep(reply, **_):
        body = reply.request.body
        exchanges.append(
            {
                "method": reply.request.method,
                "path": reply.request.path_url,
                "body": json.loads(body) if body else None,
                "status": reply.status_code,
                "answer": reply.json(),
            }
        )

    for protocol in ("vllm", "openai"):
        config = TeacherConfig(
            server=url, tokenizer="-", context=MAX_MODEL_LEN - 2, protocol=protocol, requests=1
        )
        scorer = ServerScorer(config)
        scorer._session.hooks["response"].append(keep)
        list(scorer.score(asked))
        if protocol == "vllm":
            for ids in (np.full(MAX_MODEL_LEN, 5), np.array([5, 99_999])):  # too long; no such id
                with suppress(ServerError):
                    list(scorer.score([Window(ids, 1)]))
    return [exchange for n, exchange in enumerate(exchanges) if exchange not in exchanges[:n]]


if __name__ == "__main__":
    if PYTHON is None:
        sys.exit("VOCAGNO_VLLM_PYTHON: names no Python that has vLLM")
    main()
