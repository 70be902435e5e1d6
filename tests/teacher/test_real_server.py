"""A real vLLM, as a server and in process, on the CPU: `make test-servers`."""

import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("requests")

import vocagno
from corpora import write_corpus
from families import TEXTS
from runs import wait_for_shards
from vllm_server import PYTHON, VllmServer, save_teacher, vllm_environment
from vocagno.cli.app import main
from vocagno.teacher.score_store import ScoreStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="VOCAGNO_VLLM_PYTHON names no Python with vLLM; make test-servers"
    ),
]
CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and a corpus with documents of up to ten windows."""
    folder = tmp_path_factory.mktemp("vllm")
    save_teacher(folder / "model")
    texts = [f"{n}: " + " ".join(TEXTS[n % 6 : n % 6 + 1 + 3 * (n % 7)]) for n in range(40)]
    write_corpus(folder / "c.jsonl", texts)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with VllmServer(folder / "model", folder / "log", max_model_len=CONTEXT + 2) as running:
        yield running


def command(folder, out, *teacher, shard_bytes=1):
    """Arguments of `vocagno`. Every document is a shard unless told otherwise."""
    arguments = ["score", folder / "c.jsonl", "--cache", folder / "cache", "--out", out]
    arguments += ["--teacher.context", CONTEXT, "--shard_bytes", shard_bytes, *teacher]
    return [str(word) for word in arguments]


def by_server(folder, out, server, **options):
    tokenizer = folder / "model" / "tokenizer.json"
    teacher = ["--teacher.server", server.url, "--teacher.tokenizer", tokenizer]
    return command(folder, out, *teacher, "--teacher.requests", 4, **options)


@pytest.fixture(scope="module")
def our_store(folder):
    """The store of our own scorer."""
    assert main(command(folder, folder / "ours", "--teacher.model", folder / "model")) == 0
    return ScoreStore(folder / "ours")


def assert_same(first, second):
    """Within a float16 step, token by token; the greatest difference is printed."""
    assert len(first) == len(second)
    far, steps, tokens, equal = 0.0, 0.0, 0, 0
    for number in range(len(first)):
        left, right = first.document(number), second.document(number)
        np.testing.assert_array_equal(left.spans, right.spans)
        has = np.isfinite(left.nll)
        np.testing.assert_array_equal(has, np.isfinite(right.nll))
        step = np.spacing(np.maximum(left.nll, right.nll)[has]).astype(np.float32)
        differences = np.abs(left.nll[has].astype(np.float32) - right.nll[has].astype(np.float32))
        far, steps = max(far, differences.max()), max(steps, (differences / step).max())
        tokens, equal = tokens + len(differences), equal + int((differences == 0).sum())
    print(f"{tokens:,} losses, {equal:,} equal, others differ by {far:.4f} nats, {steps:.0f} step")
    assert steps <= 1


def assert_same_candidates(first, second):
    """Ids that are as likely may change places; codes of probabilities are at most one apart."""
    same = tokens = 0
    for number in range(len(first)):
        left, right = (
            store.document(number, candidates=True).candidates for store in (first, second)
        )
        np.testing.assert_array_equal(left.tokens, right.tokens)
        assert np.abs(left.codes.astype(np.int16) - right.codes).max() <= 1
        same, tokens = same + int((left.ids == right.ids).all(1).sum()), tokens + len(left.tokens)
    print(f"{tokens:,} tokens, {same:,} with the same {first.candidates} candidates")
    assert same > 0.99 * tokens


@pytest.mark.parametrize("protocol", ["vllm", "openai"])
def test_each_protocol_gives_our_losses(folder, server, our_store, tmp_path, protocol):
    arguments = by_server(folder, tmp_path / "store", server, shard_bytes=100_000)
    assert main([*arguments, "--teacher.protocol", protocol]) == 0
    store = ScoreStore(tmp_path / "store")
    assert store.manifest.made_from["teacher"] == f"{protocol} server: tiny"
    assert_same(store, our_store)
    assert max(len(store.document(n).nll) for n in range(len(store))) > 3 * CONTEXT


def test_candidates_are_those_of_transformers(folder, server, our_store, tmp_path):
    """Of the server, and of vLLM in process: those of transformers."""
    options = {"shard_bytes": 100_000}
    model = ["--teacher.model", folder / "model", "--candidates", 5]
    assert main(command(folder, tmp_path / "ours", *model, **options)) == 0
    expected = ScoreStore(tmp_path / "ours")
    assert_same(expected, our_store)
    served = by_server(folder, tmp_path / "served", server, **options)
    assert main([*served, "--candidates", "5"]) == 0
    done = in_vllm(
        command(folder, tmp_path / "vllm", *model, "--teacher.engine", "vllm", **options)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("served", "vllm"):
        assert_same(ScoreStore(tmp_path / name), our_store)
        assert_same_candidates(ScoreStore(tmp_path / name), expected)


def test_vllm_in_process(folder, our_store, tmp_path):
    """Windows of 129 ids are computed in passes of 100 tokens."""
    arguments = command(
        folder, tmp_path / "store", "--teacher.model", folder / "model", shard_bytes=100_000
    )
    arguments += ["--teacher.engine", "vllm", "--teacher.batch_tokens", "100"]
    done = in_vllm([*arguments, "--json"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith('{"store"')  # vLLM writes to stderr
    assert_same(ScoreStore(tmp_path / "store"), our_store)


def test_vllm_in_process_is_terminated(folder, tmp_path):
    arguments = command(folder, tmp_path / "store", "--teacher.model", folder / "model")
    process = in_vllm([*arguments, "--teacher.engine", "vllm"], wait=False)
    wait_for_shards(tmp_path / "store", 2, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 75, errors[-3000:]
    assert "Run the same command again to resume" in errors


def in_vllm(arguments, *, wait=True):
    """The command in the Python that has vLLM."""
    start = subprocess.run if wait else subprocess.Popen
    sources = str(Path(vocagno.__file__).parents[1])
    return start(
        [PYTHON, "-m", "vocagno", *arguments],
        env=vllm_environment() | {"PYTHONPATH": sources},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
