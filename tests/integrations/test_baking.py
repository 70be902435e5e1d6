"""Baked losses and weights are those that training would see; whole files are baked in parts,
resumed after kills, shared by processes, and in bounded memory."""

import json
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from families import TEXTS
from folders import contents
from runs import environment
from token_streams import documents_of, write_losses, write_megatron, write_numpy
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import cut_rows, join_documents
from vocagno.data.store.format import REPORT
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.batch import GuidanceTensors
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import Collator
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.guidance.selective import token_weights
from vocagno.integrations.baked_files import CANDIDATES, LOSSES, WEIGHTS, BakedLosses
from vocagno.integrations.baking.documents import Baker, check_rule
from vocagno.integrations.baking.whole_file import bake_file
from vocagno.integrations.token_files import TokenFileError, open_token_file
from vocagno.teacher.score_store import DocumentScores
from vocagno.tokens.buckets import buckets
from vocagno.tokens.id_texts import TokenizedTexts
from vocagno.tokens.tokenizer_files import TokenizerError
from warm_python import executable

LONG = "\n".join(TEXTS)
DOCUMENTS = [f"{number}: {text}" for number, text in enumerate([*TEXTS[:11], LONG, "", "a\n\nb"])]
NUMBERED = [f"{number}: {text}" for number, text in enumerate(TEXTS * 3)]
MANY = [*NUMBERED, NUMBERED[4], "\n".join(NUMBERED)]
"""One text is there twice; the last one is longer than two parts of `small`."""
WHOLE_FILE = "vocagno.integrations.baking.whole_file"
DEFAULT = GuidanceConfig()
TOKEN = GuidanceConfig(unit="token")


@pytest.fixture
def made(tmp_path, tokenizers):
    """The student, the scores, and all documents as one row: BOS, tokens, EOS."""
    spans = TokenSpans(tokenizers["llama"])
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], DOCUMENTS, unscored=0.02)
    eos = spans.token_id("</s>")
    stream = join_documents(spans.encode(DOCUMENTS), 0, spans.prefix_ids, eos)
    (row,) = cut_rows(stream, len(stream.ids))
    return spans, store, row


def baked(made, losses, rule=None):
    spans, store, row = made
    decoded = spans.texts_and_tokens(row.ids, np.concatenate([[0], np.cumsum(row.num_tokens)]))
    assert decoded[0] == DOCUMENTS
    return Baker(spans, store, losses, rule).bake(*decoded)


def collator(made, guidance):
    spans, store, row = made
    data = DataConfig(train="unused", seq_len=len(row.ids) - 1)
    return Collator(store, guidance, data, spans.line_ends())


@pytest.mark.parametrize(
    ("unit", "aggregation"),
    [*(("token", how) for how in ("max", "mean", "sum", "min")), ("group", "max")],
)
def test_losses_are_those_of_the_collator(made, unit, aggregation):
    guidance = GuidanceConfig(unit=unit, aggregation=aggregation)
    streams, _ = baked(made, guidance)
    _, expected = collator(made, guidance).align([made[2]])
    np.testing.assert_array_equal(streams[LOSSES], expected.teacher_loss.astype(np.float16))
    assert 0.5 < np.isfinite(streams[LOSSES]).mean() < 0.95
    assert streams.keys() == {LOSSES}


def test_candidates_are_those_of_training(tmp_path, tokenizers, small, monkeypatch):
    """Of all parts, and of a document without scores, whose tokens have none."""
    student, teacher = (TokenSpans(tokenizers[name]) for name in ("llama", "byte-level"))
    texts = DOCUMENTS[:-1]
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], texts, candidates=4)
    targets = BucketTargets(buckets(student, teacher), 4)
    documents = documents_of(tokenizers["llama"], DOCUMENTS)
    path = write_numpy(tmp_path / "c.npy", documents)
    file = open_token_file(path, eos_id=student.token_id("</s>"))
    loose = replace(DEFAULT, min_coverage=0.0)
    bake_file(file, student, store, tmp_path / "baked", loose, targets=targets)
    streams = BakedLosses(tmp_path / "baked")
    assert streams.manifest["counts"]["with_candidates"] == (streams.candidates >= 0).any(1).sum()
    assert streams.bucket_key == targets.table.key
    for wrong in (
        BucketTargets(buckets(student, teacher), 3),
        BucketTargets(buckets(student, student), 4),
        BucketTargets(buckets(teacher, teacher), 4),
    ):
        with pytest.raises(ConfigError, match=r"^targets: "):
            bake_file(file, student, store, tmp_path / "wrong", loose, targets=wrong)
        assert not (tmp_path / "wrong").exists()
    made_from = store.manifest.made_from
    assert made_from.pop("tokenizer") == targets.teachers[0]
    with pytest.raises(ConfigError, match="does not say its teacher's tokenizer"):
        bake_file(file, student, store, tmp_path / "wrong", loose, targets=targets)
    made_from["tokenizer"] = targets.teachers[0]
    monkeypatch.setattr(f"{WHOLE_FILE}.LEAST_COMPARED", 1.1)
    with pytest.raises(GuidanceError, match="tokens with a teacher loss have candidates"):
        bake_file(file, student, store, tmp_path / "wrong", loose, targets=targets)
    assert streams.candidates.shape == streams.candidate_mass.shape == (len(streams), 4)
    table = streams.buckets()
    assert (table.key, table.places, table.shares) == (targets.table.key, [4], (1.0,))
    assert table.vocabulary_size == student.vocabulary_size
    assert torch.equal(table.members, targets.table.members)
    assert torch.equal(table.begins, targets.table.begins)
    np.testing.assert_array_equal(np.load(tmp_path / "baked" / CANDIDATES), streams.candidates)
    guidance = GuidanceConfig(method="distill", distill_where="all")  # these have no entropies
    data = DataConfig(train="unused", seq_len=len(streams) - 1)
    stream = join_documents(student.encode(texts), 0, student.prefix_ids, student.token_id("</s>"))
    (row,) = cut_rows(stream, len(stream.ids))
    scores = ScoresInOrder([store.document(i, candidates=True) for i in range(len(texts))])
    whole = Collator(scores, guidance, data, student.line_ends(), targets=targets)([row])
    expected = whole.candidates[0].numpy()
    count = len(expected)
    np.testing.assert_array_equal(streams.candidates[1 : count + 1], expected)
    mass = whole.candidate_mass[0].numpy().astype(np.float16)
    np.testing.assert_array_equal(streams.candidate_mass[1 : count + 1], mass)
    assert 0.3 < (expected >= 0).any(1).mean() < 0.95
    assert (streams.candidates[count + 1 :] == -1).all()
    assert not streams.candidate_mass[count + 1 :].any()


@pytest.mark.parametrize(
    "rule",
    [
        DEFAULT,
        GuidanceConfig(unit="token", window_max_loss=1.5),
        GuidanceConfig(unmapped="exclude"),
        GuidanceConfig(unmapped="mean"),
        GuidanceConfig(scope="micro_batch"),
    ],
)
@pytest.mark.parametrize("losses", [GuidanceConfig(unit="token"), DEFAULT])
def test_weights_are_those_of_training_whatever_the_student_loses(made, rule, losses):
    weights = baked(made, losses, rule)[0][WEIGHTS]
    tensors = collator(made, rule)([made[2]]).inputs()
    student_nll_BT = torch.rand(tensors["labels"].shape) * 10
    arguments = student_nll_BT, GuidanceTensors.of(tensors), tensors["labels"], rule
    expected = token_weights(*arguments)[0].numpy()
    np.testing.assert_array_equal(weights[1:], np.round(255 * expected).astype(np.uint8))
    assert 0.1 < (weights == 255).mean() < 0.9


def test_the_counts_are_those_of_the_baked_streams(made):
    spans, _, row = made
    streams, counts = baked(made, TOKEN)
    sides, view = collator(made, TOKEN).align([row])
    assert counts["documents"] == len(DOCUMENTS)
    assert counts["tokens"] == len(row.ids)
    assert counts["missing_tokens"] == counts["missing_documents"] == 0
    assert counts["losses"] == np.isfinite(streams[LOSSES]).sum()
    assert counts["with_text"] == (sides.student_spans[:, 0] < sides.student_spans[:, 1]).sum()
    assert counts["scored"] == np.isfinite(view.teacher_loss).sum()
    assert counts["scored"] <= counts["scorable"] < counts["with_text"]
    assert spans.prefix_ids


def test_a_loss_beyond_float16_is_none(made, monkeypatch):
    spans, store, _ = made
    text = DOCUMENTS[0]
    spans_of_teacher = store.document(0).spans
    scores = DocumentScores(spans_of_teacher, np.full(len(spans_of_teacher), 6e4, np.float16))
    tokens = spans.encode([text])
    token = TokenizedTexts(tokens.ids[:1], tokens.spans[:1] * 0, np.array([0, 1]), tokens.proved)
    token.spans[0] = [0, len(text.encode())]  # one token of the student for all of the teacher's
    monkeypatch.setattr(store, "document", lambda index, **options: scores)
    guidance = GuidanceConfig(unit="token", aggregation="sum")
    assert np.isnan(Baker(spans, store, guidance).bake([text], token)[0][LOSSES]).all()


@pytest.mark.parametrize(
    "options",
    [{"top_fraction": 0.4}, {"max_threshold": 0.0}, {"method": "cpt"}, {"method": "rho1"}],
)
def test_rules_that_need_the_student_are_refused(options):
    (option,) = options
    with pytest.raises(ConfigError, match=rf"guidance\.{option}: .*weights"):
        check_rule(GuidanceConfig(**options))


@pytest.fixture
def whole_file(tmp_path, tokenizers):
    """The student's tokenizer, scores, and a file of ids."""
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], MANY, candidates=2)
    documents = documents_of(tokenizers["llama"], MANY)
    assert len(documents[-1]) > 2 * 400
    path = write_megatron(tmp_path / "corpus", documents)
    return TokenSpans(tokenizers["llama"]), store, open_token_file(path)


@pytest.fixture
def small(monkeypatch):
    """Parts of 400 tokens, batches of 150."""
    monkeypatch.setattr(f"{WHOLE_FILE}.PART_TOKENS", 400)
    monkeypatch.setattr(f"{WHOLE_FILE}.BATCH_TOKENS", 150)


def test_parts_and_batches_give_the_streams_of_one(whole_file, tmp_path, small, monkeypatch):
    spans, store, file = whole_file
    bake_file(file, spans, store, tmp_path / "parts", TOKEN, DEFAULT)
    for name in ("PART_TOKENS", "BATCH_TOKENS"):
        monkeypatch.setattr(f"{WHOLE_FILE}.{name}", 1 << 20)
    counts = bake_file(file, spans, store, tmp_path / "one", TOKEN, DEFAULT)
    parts, whole = (BakedLosses(tmp_path / name) for name in ("parts", "one"))
    assert len(whole) == file.num_tokens > 1000
    np.testing.assert_array_equal(parts.losses, whole.losses)
    np.testing.assert_array_equal(parts.weights, whole.weights)
    assert parts.manifest["counts"] == whole.manifest["counts"] == counts
    assert (counts["documents"], counts["missing_documents"]) == (len(MANY), 0)
    for baked in (parts, whole):
        baked.check(file.path, whole=True)
    again = bake_file(file, spans, store, tmp_path / "one", TOKEN, DEFAULT)
    assert again == counts
    assert whole.manifest["made_from"]["rule"] == {  # folders of older versions have these names
        **{"unit": "group", "window": "line", "window_max_loss": 2.0, "min_weight": 0.0},
        **{"aggregation": "max", "unmapped": "include"},
    }


@pytest.mark.slow
def test_memory_is_that_of_a_batch(tmp_path, tokenizers, monkeypatch):
    """Of a file eight times as large the peak is the same, and no batch is larger than a document
    and the limit."""
    monkeypatch.setattr(f"{WHOLE_FILE}.PART_TOKENS", 20_000)
    monkeypatch.setattr(f"{WHOLE_FILE}.BATCH_TOKENS", 2_000)
    texts = [" ".join(MANY[i : i + 3]) for i in range(len(MANY) - 3)]
    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], texts)
    documents, spans = documents_of(tokenizers["llama"], texts), TokenSpans(tokenizers["llama"])
    sizes, bake = [], Baker.bake

    def measured(self, batch_texts, tokens, refused):
        sizes.append(len(tokens.ids))
        return bake(self, batch_texts, tokens, refused)

    monkeypatch.setattr(Baker, "bake", measured)
    peaks = []
    for times in (4, 4, 32):  # the first one loads what it needs
        path = write_megatron(tmp_path / f"c{len(peaks)}", documents * times)
        file = open_token_file(path)
        sizes.clear()
        tracemalloc.start()
        bake_file(file, spans, store, tmp_path / f"out{len(peaks)}", TOKEN, DEFAULT)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(sizes) == file.num_tokens
        assert max(sizes) < 2_000 + max(map(len, documents))
    assert file.num_tokens > 50 * 2_000
    assert peaks[2] < 1.3 * peaks[1]


def test_edited_documents_are_counted_and_limited(whole_file, tmp_path, tokenizers, small):
    spans, store, _ = whole_file
    texts = [*MANY[:40], "Now another one.", *MANY[41:]]
    path = write_megatron(tmp_path / "edited", documents_of(tokenizers["llama"], texts))
    file = open_token_file(path)
    tolerant = GuidanceConfig(unit="token", min_coverage=0.9)
    counts = bake_file(file, spans, store, tmp_path / "out", tolerant)
    assert counts["missing_documents"] == 1
    losses = BakedLosses(tmp_path / "out").losses
    ((_, borders),) = file.batches(0, file.num_tokens, file.num_tokens)
    assert np.isnan(losses[borders[40] : borders[41]]).all()
    assert np.isfinite(losses[borders[41] :]).any()
    assert counts["missing_tokens"] == borders[41] - borders[40]
    strict = GuidanceConfig(unit="token", min_coverage=1.0)
    with pytest.raises(StoreError, match=r"1 of the first \d+ documents of .*edited.bin have no"):
        bake_file(file, spans, store, tmp_path / "strict", strict)
    assert not (tmp_path / "strict" / "baked.json").exists()
    bake_file(file, spans, store, tmp_path / "strict", tolerant)
    assert contents(tmp_path / "strict") == contents(tmp_path / "out")
    with pytest.raises(StoreError, match="1 of the first"):  # finished, under a stricter limit
        bake_file(file, spans, store, tmp_path / "out", strict)


def test_too_few_losses_are_refused(tmp_path, tokenizers, whole_file):
    spans, _, file = whole_file
    store = write_losses(tmp_path / "few", tokenizers["byte-level"], MANY, unscored=0.5)
    with pytest.raises(GuidanceError, match=r"have a teacher loss .*Main cause: unscored \(\d+"):
        bake_file(file, spans, store, tmp_path / "out", TOKEN)


def test_another_tokenizer_is_refused(whole_file, tmp_path, tokenizers):
    _, store, file = whole_file
    other = TokenSpans(tokenizers["byte-level"])
    with pytest.raises((StoreError, TokenizerError), match=r"corpus\.bin"):
        bake_file(file, other, store, tmp_path / "out", TOKEN)
    path = write_megatron(tmp_path / "beyond", [[1, 60_000, 2]])
    with pytest.raises(TokenizerError, match=r"beyond.bin: in the 1 documents from token 0 on: "):
        bake_file(open_token_file(path), other, store, tmp_path / "new", TOKEN)
    negative = write_megatron(tmp_path / "negative", [[1, -5, 2]], "i4")
    with pytest.raises(TokenizerError, match=r"from token 0 on: .*id -5"):
        bake_file(open_token_file(negative), other, store, tmp_path / "new2", TOKEN)


def test_a_folder_takes_losses_of_one_file_and_rule(whole_file, tmp_path, tokenizers, small):
    spans, store, file = whole_file
    folder = tmp_path / "out"
    bake_file(file, spans, store, folder, TOKEN)
    before = contents(folder)
    other = write_megatron(tmp_path / "other", documents_of(tokenizers["llama"], MANY[1:]))
    other_scores = write_losses(tmp_path / "others", tokenizers["byte-level"], MANY, seed=1)
    for arguments, message in (
        ((open_token_file(other), spans, store), "another token file"),
        ((file, TokenSpans(tokenizers["metaspace-first"]), store), "another tokenizer"),
        ((file, spans, other_scores), "another scores"),
    ):
        with pytest.raises(TokenFileError, match=f"out: holds losses of {message}"):
            bake_file(*arguments, folder, TOKEN)
    with pytest.raises(TokenFileError, match=r"of another losses .*'group'"):
        bake_file(file, spans, store, folder, DEFAULT)
    with pytest.raises(TokenFileError, match="holds losses of another rule"):
        bake_file(file, spans, store, folder, TOKEN, DEFAULT)
    assert contents(folder) == before


SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "killed_baking.py"


@pytest.fixture
def command(whole_file, tmp_path, tokenizer_files):
    def command(out, point="none", turn=0):
        arguments = "bake", tmp_path / "corpus", "--scores", tmp_path / "scores", "--out", out
        options = "--tokenizer", tokenizer_files / "student.json", "--weights", "--cache"
        options += tmp_path / "cache", "--teacher_tokenizer", tokenizer_files / "teacher.json"
        return [executable(), *map(str, (SCRIPT, point, turn, *arguments, *options))]

    return command


def run(words):
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_after_kills_the_bytes_are_the_same(command, tmp_path):
    assert run(command(tmp_path / "whole"))[0] == 0
    killed = tmp_path / "killed"
    kills = ("write", 1), ("note", 1), ("write", 3), ("write", 6), ("note", 2), ("finish", 1)
    for kill in kills:
        status, errors = run(command(killed, *kill))
        assert status in (-signal.SIGKILL, 128 + signal.SIGKILL), (kill, errors)
        assert not (killed / "baked.json").exists()
    assert run(command(killed))[0] == 0
    assert contents(killed) == contents(tmp_path / "whole")
    assert sorted(path.name for path in killed.iterdir()) == [
        *(".locks", "baked.json", "buckets.npy", "candidate.npy", "candidate_mass.npy"),
        *("teacher_loss.npy", "weight.npy"),
    ]


@pytest.mark.slow
def test_processes_share_a_file(command, tmp_path):
    assert run(command(tmp_path / "whole"))[0] == 0
    words = command(tmp_path / "shared")
    started = [
        subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in started:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def test_documents_without_a_text_have_no_losses_and_are_named(
    whole_file, tmp_path, tokenizers, small
):
    """Two are cut inside a character; the others have the losses that they have without them."""
    spans, store, whole = whole_file
    bake_file(whole, spans, store, tmp_path / "whole", TOKEN, DEFAULT)
    documents = documents_of(tokenizers["llama"], MANY)
    cut = tokenizers["llama"].encode("☃", add_special_tokens=False).ids[:-1]
    at = 7, len(documents) + 1
    for number in at:
        documents.insert(number, cut)
    file = open_token_file(write_megatron(tmp_path / "cut", documents))
    counts = bake_file(file, spans, store, tmp_path / "cut_out", TOKEN, DEFAULT)
    baked, expected = BakedLosses(tmp_path / "cut_out"), BakedLosses(tmp_path / "whole")
    sizes = np.array([len(document) for document in documents])
    is_cut = np.repeat(np.isin(np.arange(len(documents)), at), sizes)
    assert np.isnan(baked.losses[is_cut]).all()
    np.testing.assert_array_equal(baked.losses[~is_cut], expected.losses)
    np.testing.assert_array_equal(baked.weights[~is_cut], expected.weights)
    assert (counts["documents"], counts["refused_documents"]) == (len(documents), 2)
    assert counts["missing_documents"] == 2
    lines = (tmp_path / "cut_out" / REPORT).read_text("utf-8").splitlines()
    places = [json.loads(line)["place"] for line in lines]
    firsts = np.cumsum(sizes) - sizes
    assert places == [f"cut.bin, document from token {firsts[number]} on" for number in at]
    assert "cut inside a character" in json.loads(lines[0])["why"]
    with pytest.raises(TokenizerError, match="cut inside a character"):
        bake_file(file, spans, store, tmp_path / "none", TOKEN, max_refused=0)
    for _ in range(9):
        documents.insert(20, cut)
    file = open_token_file(write_megatron(tmp_path / "more", documents))
    with pytest.raises(StoreError, match=r"the tokens of 11 of 85 documents cannot be placed"):
        bake_file(file, spans, store, tmp_path / "more_out", replace(TOKEN, min_coverage=0.5))
