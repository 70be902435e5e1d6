"""A teacher behind an HTTP server: vLLM, SGLang, or one with OpenAI's completions and `echo`.

The server gets ids and gives log-probabilities of these ids, and of the most likely ones (not with
OpenAI's protocol). Needs `vocagno[server]`.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict, TypeVar

import numpy as np
import requests
from numpy.typing import NDArray
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from vocagno.config.teacher import TeacherConfig
from vocagno.data.store.shards import StoreError
from vocagno.errors import InputError
from vocagno.system.addresses import Address
from vocagno.system.files import write_new_json
from vocagno.system.records import Count, check_type
from vocagno.system.shared_work import LOCKS
from vocagno.teacher.candidates import ScoredWindow, code_candidates
from vocagno.teacher.configured import Engine
from vocagno.teacher.windows import Window, losses_of, windows_to_score

_RETRIES = 8
"""The number of retries of a request."""
_BACKOFF = 0.5
"""Half of the seconds before the second retry. Pauses double; the first retry has none."""
_SECONDS = 600.0
"""Seconds until a request counts as lost."""

TOLERANCE = 0.1
"""The largest mean difference, in nats, of two answers of one model about `PROBE`.

Batches and kernels round bfloat16 differently. SmolLM2-135M by three implementations: 0.04 to 0.05;
with 8-bit integer weights 0.08, with 8-bit float weights 0.13, with 4-bit weights 0.6.
"""

_LEAST_SPREAD = 1e-3
"""The smallest spread, in nats, of a model's losses of `PROBE`.

A stub answers 0 for each token. An untrained model, which is nearest to that, spreads them by more
than 0.1.
"""

PROBE = '''\
A baker sells bread in bags of 12. On Monday she fills 37 bags and has 5 loaves left, so she baked \
37 * 12 + 5 = 449 loaves. How many bags does she need for 600 loaves? 600 / 12 = 50, so she needs \
50 bags.

def area(width, height):
    """The area of a rectangle."""
    return width * height

Let $f(x) = x^2 - 4x + 3$. Then $f(x) = (x - 1)(x - 3)$, and $f$ is zero at $x = 1$ and at $x = 3$.
Its minimum is $-1$, at $x = 2$. The river rises in the hills near the town, flows north for 80
kilometres and reaches the sea at a small harbour. In winter it floods the meadows; in summer
children swim in it.
'''
"""A text of prose, code and mathematics, about 200 tokens, that a server is tried with.

On text rounding matters little; on random ids it changes the losses by 1.3 nats a token.
"""

LogProbabilities = list[float | None]
Tops = list[list[tuple[float, int]]]
"""For each id of a prompt, the log-probabilities and ids of the most likely ones at its place.

The first id has none.
"""
T = TypeVar("T")
_ID = re.compile("[0-9]{1,9}")


class ServerError(InputError):
    """A server refuses a request, answers wrongly, or does not answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model of a server."""

    name: str
    longest: int | None
    """The most tokens of a request, if the server says it."""


# The parts of the servers' answers that are read; `_ask` refuses an answer without them.
class _Model(TypedDict):
    id: str
    max_model_len: Count | None
    owned_by: str | None


class _Models(TypedDict):
    data: list[_Model]


class _LogProbability(TypedDict):
    logprob: float


class _VllmChoice(TypedDict):
    prompt_logprobs: list[dict[str, _LogProbability] | None]
    prompt_token_ids: list[int] | None


class _VllmCompletion(TypedDict):
    choices: tuple[_VllmChoice]


class _EchoLogProbabilities(TypedDict):
    token_logprobs: list[float | None]


class _EchoChoice(TypedDict):
    logprobs: _EchoLogProbabilities


class _EchoCompletion(TypedDict):
    choices: tuple[_EchoChoice]


class _SglangModel(TypedDict):
    model_path: str | None


class _SglangMeta(TypedDict):
    input_token_logprobs: list[tuple[float | None, int]]
    input_top_logprobs: list[list[tuple[float, Count]] | None] | None


class _SglangCompletion(TypedDict):
    meta_info: _SglangMeta


class ServerScorer:
    """A `Scorer` that keeps `teacher.requests` requests under way.

    A lost connection and a status of 429 or 5xx are tried again, with growing pauses. Any other
    status stops, with the server's words.
    """

    def __init__(self, config: TeacherConfig, num_ids: int | None = None) -> None:
        """Args:
        config: options with `server`; `model`, if set, is the name of the model there.
        num_ids: the number of ids of the tokenizer. Further ids of the model, which pad it, are no
            candidates.
        """
        assert config.server is not None
        self._num_ids = num_ids
        self._config = config
        self.url: str = config.server.rstrip("/")
        if not self.url.lower().startswith(("http://", "https://")):
            raise ServerError(
                f"teacher.server: expected an address such as http://127.0.0.1:8000, got "
                f"{config.server}"
            )
        retry = Retry(
            total=_RETRIES,
            backoff_factor=_BACKOFF,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=None,  # a request changes nothing on the server
            raise_on_status=False,
        )
        # Connections as many as requests: a smaller pool would close and open one for each request.
        adapter = HTTPAdapter(max_retries=retry, pool_maxsize=config.requests)
        self._session = requests.Session()
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    @cached_property
    def served_model(self) -> Served:
        """The model that answers.

        Raises: ServerError if the server has no model of that name, or several and none is named,
            or if it is a server that ignores requests for log-probabilities.
        """
        if self._config.protocol == "sglang":
            path = self._ask("/get_model_info", _SglangModel)["model_path"] or "?"
            # A path there and a name here may be of one model; the last parts are compared.
            wanted_name = self._config.model and PurePosixPath(self._config.model).name
            if wanted_name not in (None, PurePosixPath(path).name):
                raise ServerError(
                    f"{self.url}: has the model {path}, not {self._config.model}; correct "
                    "--teacher.model, or omit it"
                )
            return Served(path, None)
        models = self._ask("/v1/models", _Models)["data"]
        if any(model["owned_by"] == "llamacpp" for model in models):
            raise ServerError(
                f"{self.url}: llama.cpp's server gives no log-probabilities of a prompt; read the "
                "GGUF file in this process: --teacher.gguf_file"
            )
        # Reversed, so that of two models with one name the first one counts, as in the server's
        # list.
        longest = {model["id"]: model["max_model_len"] for model in reversed(models)}
        name = self._config.model or (models[0]["id"] if len(models) == 1 else None)
        if name not in longest:
            names = ", ".join(model["id"] for model in models) or "(none)"
            raise ServerError(f"{self.url}: has the models {names}; name one with --teacher.model")
        return Served(name, longest[name])

    def score(
        self, windows: Sequence[Window]
    ) -> Iterator[tuple[int, NDArray[np.float32] | ScoredWindow]]:
        """Yields number and losses of each window that requests any, in the order of answers."""
        pool = ThreadPoolExecutor(self._config.requests)
        try:
            tasks = {
                pool.submit(self._losses, windows[number]): number
                for number in windows_to_score(windows)
            }
            for task in as_completed(tasks):
                yield tasks[task], task.result()
        finally:  # also if the caller stops early: requests that wait are not sent
            pool.shutdown(cancel_futures=True)

    def _losses(self, window: Window) -> NDArray[np.float32] | ScoredWindow:
        """The losses in nats of the requested tokens, NaN where the server has none; candidates.

        Raises: ServerError for an answer about other tokens than were sent.
        """
        protocols = {"vllm": self._vllm, "openai": self._openai, "sglang": self._sglang}
        ids, count = window.ids.tolist(), self._config.candidates
        # The whole window is sent: what comes before the requested tokens is their context.
        logprobs, tops = protocols[self._config.protocol](ids)

        def error(words: str) -> ServerError:
            return ServerError(f"{self.url} {words}")

        losses = losses_of(logprobs[window.asked_from :], error)
        if not count:
            return losses
        if len(tops) != len(ids):
            raise error(f"gives candidates for {len(tops):,} of {len(ids):,} ids")
        top_ids, top_log_p = _as_arrays(tops[window.asked_from :])
        return ScoredWindow(
            losses, *code_candidates(top_ids, top_log_p, count, self._num_ids, error)
        )

    def _vllm(self, ids: list[int]) -> tuple[LogProbabilities, Tops]:
        """The log-probabilities of ids, and the most likely ids, from vLLM."""
        count = self._config.candidates
        options = {"prompt_logprobs": count, "add_special_tokens": False, "return_token_ids": True}
        # The ids that the server says it has read are compared: some truncate a prompt, or add to
        # it, without an error.
        choice = self._completion(ids, options, _VllmCompletion)["choices"][0]
        self._compare(choice["prompt_token_ids"], ids)
        answers = choice["prompt_logprobs"]
        if len(answers) != len(ids):
            raise ServerError(
                f"{self.url}: {len(answers):,} log-probabilities for {len(ids):,} ids; the server "
                "truncates the prompt, or adds to it"
            )
        pairs = [*zip(map(str, ids), answers, strict=True)]  # JSON's keys are strings
        if any(at is not None and index not in at for index, at in pairs):
            raise ServerError(f"{self.url}: gives log-probabilities of other ids than were sent")
        logprobs = [None if at is None else at[index]["logprob"] for index, at in pairs]
        if not count:
            return logprobs, []
        if bad := [key for at in answers for key in at or () if not _ID.fullmatch(key)]:
            raise ServerError(f"{self.url}: gives a candidate {bad[0]!r}, which is no id")
        return logprobs, [
            [(answer["logprob"], int(key)) for key, answer in (at or {}).items()] for at in answers
        ]

    def _openai(self, ids: list[int]) -> tuple[LogProbabilities, Tops]:
        """The log-probabilities of ids from OpenAI's completions, which give no others."""
        choice = self._completion(ids, {"echo": True, "logprobs": 0}, _EchoCompletion)["choices"][0]
        logprobs = choice["logprobs"]["token_logprobs"]
        if len(logprobs) != len(ids) + 1:  # one token is written
            raise ServerError(
                f"{self.url}: {len(logprobs):,} log-probabilities for {len(ids):,} ids and one "
                "more; the server ignores `echo`, or truncates the prompt"
            )
        return logprobs[: len(ids)], []

    def _sglang(self, ids: list[int]) -> tuple[LogProbabilities, Tops]:
        """The log-probabilities of ids, and the most likely ids, from SGLang."""
        # The temperature is sent in each protocol: a server's default may scale the
        # log-probabilities.
        sampling = {"max_new_tokens": 0, "temperature": 1.0}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
        if self._config.candidates:
            body["top_logprobs_num"] = self._config.candidates
        reply = self._ask("/generate", _SglangCompletion, {**body, "logprob_start_len": 0})
        answers = reply["meta_info"]["input_token_logprobs"]
        # Each answer is a list of at least two: `check_type` lets further parts (a text) pass.
        self._compare([answer[1] for answer in answers], ids)
        tops = reply["meta_info"]["input_top_logprobs"] or []
        return [answer[0] for answer in answers], [
            [(top[0], top[1]) for top in at or ()] for at in tops
        ]

    def _completion(self, ids: list[int], options: dict[str, Any], kind: type[T]) -> T:
        """The answer to a request in OpenAI's form, with further options of it."""
        body = {"model": self.served_model.name, "prompt": ids, "max_tokens": 1, "temperature": 1.0}
        return self._ask("/v1/completions", kind, {**body, **options})

    def _compare(self, read: list[int] | None, sent: list[int]) -> None:
        """Raises: ServerError if the server says that it read other ids than were sent."""
        if read is not None and read != sent:
            raise ServerError(f"{self.url}: read other ids than were sent")

    def _ask(self, path: str, kind: type[T], body: dict[str, Any] | None = None) -> T:
        """The answer to a request. Raises: ServerError if it is not of this type."""
        method = "GET" if body is None else "POST"
        try:
            reply = self._session.request(method, self.url + path, json=body, timeout=_SECONDS)
        except requests.exceptions.InvalidURL as error:
            raise ServerError(f"teacher.server: {error}") from error
        except requests.RequestException as error:
            raise ServerError(
                f"{self.url}{path}: no answer after {_RETRIES + 1} tries ({error}); finished "
                "shards are kept: start the server, and the same command again"
            ) from error
        if reply.status_code != requests.codes.ok:
            words = " ".join(reply.text[:500].split())
            raise ServerError(f"{self.url}{path}: status {reply.status_code}: {words}")
        try:
            answer = json.loads(reply.content)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.url}{path}: the answer is not JSON ({error})") from error

        def fault(words: str) -> ServerError:
            protocol = f"is it a server for --teacher.protocol {self._config.protocol}?"
            return ServerError(f"{self.url}{path}: the answer: {words}; {protocol}")

        return check_type(kind, answer, fault)


def _as_arrays(tops: Tops) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The ids and log-probabilities of `tops`; -1 and -inf if a token has fewer than others."""
    shape = len(tops), max(map(len, tops), default=0)
    ids, log_p = np.full(shape, -1, np.int64), np.full(shape, -np.inf)
    for row, at in enumerate(tops):
        for place, (logprob, index) in enumerate(at):
            ids[row, place], log_p[row, place] = index, logprob
    return ids, log_p


def difference(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The mean absolute difference of losses of the same tokens; infinity if a side lacks some."""
    # A token without a loss on one side only is no rounding: another prefix, or another window.
    lacks = np.isnan(first), np.isnan(second)
    if not np.array_equal(*lacks):
        return math.inf
    return float(np.abs(first - second)[~lacks[0]].mean()) if not lacks[0].all() else 0.0


class ServerEngine(Engine):
    """An engine that asks a server which has the model.

    The name of the model does not identify its weights. Its losses of a fixed text do, which are
    noted next to the scores.
    """

    @cached_property
    def scorer(self) -> ServerScorer:
        """The client of the server."""
        config = self.teacher.config
        num_ids = self.teacher.reader.spans.vocabulary_size if config.candidates else None
        return ServerScorer(config, num_ids)

    @cached_property
    def weights(self) -> str:
        """The name of the model on the server."""
        return f"{self.teacher.config.protocol} server: {self.scorer.served_model.name}"

    def check(self) -> None:
        """Checks that the server reads `teacher.context` tokens, and that it computes losses: the
        same ones when asked twice, which differ from token to token.

        Raises: ServerError if not.
        """
        context, longest = self.teacher.config.context, self.scorer.served_model.longest
        needed = context + 2  # a prefix, and the token that it is to write
        if longest is not None and longest < needed:
            raise ServerError(
                f"{self.scorer.url}: reads {longest:,} tokens (max_model_len), and teacher.context "
                f"{context:,} needs {needed:,}; lower teacher.context, or raise the server's limit"
            )
        first, second = (self._losses_of(PROBE) for _ in range(2))
        if not difference(first, second) <= TOLERANCE:  # false for NaN, too
            raise ServerError(
                f"{self.scorer.url}: gives other losses of the same ids when asked twice"
            )
        losses = first[np.isfinite(first)]
        if len(losses) == 0 or np.ptp(losses) < _LEAST_SPREAD:
            answer = f"the loss {losses[0]:.4g} for every" if len(losses) else "no loss for any"
            raise ServerError(
                f"{self.scorer.url}: gives {answer} token of a text of {len(first)}; it computes "
                "no log-probabilities of a prompt; use a server or teacher.protocol that does"
            )

    def load(self) -> ServerScorer:
        return self.scorer

    def guard(self, folder: Path, *, note: bool = False) -> None:
        """Compares the losses of a fixed text with those noted in the folder.

        Args: note: True notes the losses if there is no note.
        Raises: StoreError if they differ by more than rounding, and for scores that shall be
            completed without the note of the model that began them.
        """
        path = folder / LOCKS / "probe.json"
        if note and not path.is_file():
            files = folder.sizes() if isinstance(folder, Address) else folder.rglob("*.arrow")
            if any(str(file).endswith(".arrow") for file in files):
                raise StoreError(
                    f"{folder}: has scores, but not {LOCKS}/probe.json, which tells whether the "
                    "server still has the model that they are of; copy that file from the folder "
                    "where they were made, or name another folder"
                )
            # JSON has no NaN: None stands for a token without a loss.
            exact = self._losses_of(PROBE).tolist()
            rounded = [round(loss, 4) if math.isfinite(loss) else None for loss in exact]
            write_new_json(path, {"text": PROBE, "losses": rounded})
        if not path.is_file():
            return
        # The noted text is asked for, not `PROBE`: another release may have had another one.
        try:
            noted = json.loads(path.read_bytes())
            losses, text = np.array(noted["losses"], np.float32), str(noted["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path}: this note of the server's losses is damaged ({error!r}); copy it from "
                "the folder where these scores were made, or name another folder"
            ) from error
        far = difference(losses, self._losses_of(text))
        if not far <= TOLERANCE:
            where = f"{self.scorer.served_model.name} at {self.scorer.url}"
            raise StoreError(
                f"{folder}: the scores here are of another model than {where} has now: its losses "
                f"of a fixed text differ by {far:.2g} nats a token (rounding: up to {TOLERANCE}); "
                "serve the model of these scores again, or name another folder"
            )

    def _losses_of(self, text: str) -> NDArray[np.float32]:
        """The losses of the tokens of a short text, in order."""
        reader = self.teacher.reader
        reader.spans.encode([text])  # raises if it cannot be read
        windows = dict(self.scorer.score(reader.read([text]).windows))
        answers = [windows[number] for number in sorted(windows)]
        return np.concatenate(
            [answer.nll if isinstance(answer, ScoredWindow) else answer for answer in answers]
        )
