"""The paper's other methods in the same loop: each against its definition, written out plainly."""

import json
import math
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle
from conftest import HARD_TEXTS, TEXTS, tiny_llama, write_corpus
from runs import final_weights, metrics, train_here, write_config
from test_live import DOCUMENTS, SEQ_LEN, pieces
from vocagno import TokenSpans
from vocagno.config import Config, DataConfig, StudentConfig, TeacherConfig, TrainConfig
from vocagno.corpus import scan
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance_config import GuidanceConfig
from vocagno.scores import DocumentScores
from vocagno.training.chunks import chunk_weights, most_kept, random_scores
from vocagno.training.data import Collator
from vocagno.training.guidance import token_weights
from vocagno.training.live import LivePieces, LiveTeacher, first_asked
from vocagno.training.live_rows import RowTeacher
from vocagno.training.mappings import (
    chunk_numbers,
    identity_map,
    positional_map,
    sharing_text,
)
from vocagno.training.preparing import kept_texts, prepared_rows
from vocagno.training.scoring import text_reader
from vocagno.training.student import SUMS, GuidedStudent
from vocagno.training.student_tokenizer import student_tokenizer
from vocagno.training.teacher_view import SameRows

CPU = torch.device("cpu")
NAN = float("nan")


@pytest.fixture
def config(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    """Writes the configuration of a run on a small corpus whose spans are proved from the ids, so
    that no two tokens have the same (else Algorithm 1 maps each to both)."""
    tokens = TokenSpans(tokenizers["llama"])
    proved = [text for text in HARD_TEXTS if tokens.encode([text]).proved.all()]
    assert len(proved) > 20
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS, *proved])

    def write(name, model=same_vocabulary_model, /, **sections):
        return write_config(
            tmp_path, corpus, tokenizer_files, model,
            output=str(tmp_path / name), **{"train": {"log_every": 1}, **sections},
        )  # fmt: skip

    return write


def same_weights(first, second):
    return distance(first, second) == 0


def distance(first, second):
    """The largest difference of two weights."""
    one, other = final_weights(first), final_weights(second)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# --- rho1


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
def test_with_one_vocabulary_vocagno_is_rho1(tmp_path, config, scope):
    for method in ("vocagno", "rho1", "cpt"):
        guidance = {"method": method, "scope": scope}
        assert train_here(config(method, guidance=guidance)) == 0
    assert same_weights(tmp_path / "vocagno", tmp_path / "rho1")
    assert not same_weights(tmp_path / "vocagno", tmp_path / "cpt")
    logs = [metrics(tmp_path / method)[0] for method in ("vocagno", "rho1")]
    for one, other in zip(*logs, strict=True):
        assert one["mean_excess_loss"] == other["mean_excess_loss"]
        assert one["coverage"] == other["coverage"] == 1.0


@pytest.mark.parametrize("family", ["llama", "metaspace-first", "byte-level"])
def test_counting_tokens_finds_what_searching_finds(tokenizers, family):
    """Rows begin anywhere, between the bytes of a character too; scores are of whole documents."""
    rng = np.random.default_rng(0)
    tokens = TokenSpans(tokenizers[family])
    for text in [*TEXTS[:6], *HARD_TEXTS]:
        spans = tokens.encode([text]).spans
        bounds = sorted(rng.integers(0, len(spans) + 1, 2))
        part = spans[bounds[0] : bounds[1]]
        cu_seqlens = [np.array([0, len(side)]) for side in (part, spans)]
        found = identity_map(part, spans, *cu_seqlens, [7], [True])
        expected = np.full((len(part), 2), -1)
        for place in np.flatnonzero(part[:, 0] < part[:, 1]):
            expected[place] = bounds[0] + place, bounds[0] + place + 1
        np.testing.assert_array_equal(found, expected)


def test_repeated_spans_are_counted_from_the_row_border():
    """Five bytes of one character, of which a row holds the last two."""
    teacher = np.array([[0, 1], *[[1, 5]] * 4, [5, 6]], np.int32)
    student = np.array([[0, 0], [1, 5], [1, 5], [5, 6]], np.int32)
    cu_seqlens = np.array([0, 4]), np.array([0, 6])
    mapping = identity_map(student, teacher, *cu_seqlens, [0], [True])
    assert mapping.tolist() == [[-1, -1], [3, 4], [4, 5], [5, 6]]
    # A piece behind another one begins where its document does, wherever its row ends.
    first = np.array([[0, 1], [1, 5], [1, 5]], np.int32)
    cu_seqlens = np.array([0, 3]), np.array([0, 6])
    mapping = identity_map(first, teacher, *cu_seqlens, [0], [False])
    assert mapping.tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ([[0, 2], [2, 3]], r"document 7: the student's token of bytes \[1, 2\) is \[2, 3\) in"),
        ([[0, 1]], r"document 7: the student's token of bytes \[1, 2\) is missing in"),
    ],
)
def test_other_tokens_are_refused_by_document_and_bytes(teacher, message):
    student, teacher = np.array([[0, 1], [1, 2]], np.int32), np.array(teacher, np.int32)
    if len(teacher) == 2:
        student[0] = 0, 2
        student[1] = 1, 2
    with pytest.raises(GuidanceError, match=message):
        identity_map(student, teacher, np.array([0, 2]), np.array([0, len(teacher)]), [7], [True])


@pytest.mark.parametrize(
    ("method", "mode"), [("rho1", "stored"), ("rho1", "live"), ("kld", "live")]
)
def test_another_vocabulary_is_refused_by_a_token(config, teacher_model, capsys, method, mode):
    path = config(
        "run", teacher_model, guidance={"method": method},
        teacher={"model": str(teacher_model), "mode": mode},
    )  # fmt: skip
    assert train_here(path) == 2
    message = capsys.readouterr().err
    assert f"guidance.method: {method} needs a teacher with the student's vocabulary" in message
    assert "'<unk>', id 0 of" in message
    assert "is no token of" in message


def test_scores_of_another_tokenizer_are_refused_without_naming_a_teacher(
    tmp_path, config, teacher_model, capsys
):
    assert train_here(config("a", teacher_model, train={"steps": 1})) == 0
    (scores,) = (tmp_path / "cache" / "scores").iterdir()
    path = config("b", guidance={"method": "rho1"}, teacher={"model": None, "scores": str(scores)})
    assert train_here(path) == 2
    assert "the vocabularies are not the same; use guidance.method: vocagno" in (
        capsys.readouterr().err
    )


@pytest.fixture
def rows(tmp_path, tokenizer_files):
    corpus = scan(write_corpus(tmp_path / "rows.jsonl", DOCUMENTS))
    student = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    store, _ = prepared_rows(corpus, student, SEQ_LEN, tmp_path, show_progress=False)
    texts = kept_texts(corpus, tmp_path, show_progress=False)
    return store, texts


def run_config(tmp_path, model, guidance, **data):
    return Config(
        student=StudentConfig(model="unused"), train=TrainConfig(steps=1), output=tmp_path / "run",
        data=DataConfig(train="unused", seq_len=SEQ_LEN, **data), guidance=guidance,
        teacher=TeacherConfig(model=str(model), mode="live"),
    )  # fmt: skip


@pytest.mark.parametrize("isolate", [False, True])
def test_a_teacher_reads_the_rows_as_the_student_does(
    tmp_path, rows, same_vocabulary_model, isolate
):
    from transformers import AutoModelForCausalLM

    store, _ = rows
    guidance = GuidanceConfig(method="rho1", criterion="excess_and_entropy", scope="micro_batch")
    config = run_config(tmp_path, same_vocabulary_model, guidance, isolate=isolate)
    teacher = RowTeacher(config, TokenSpans(same_vocabulary_model), CPU, 1)
    teacher._rows = 2  # several passes
    batch = Collator(SameRows(), guidance, config.data)([store[index] for index in range(5)])
    tensors = batch.to(CPU)
    given = teacher.guide(None, tensors, teacher.plan(None))
    model = AutoModelForCausalLM.from_pretrained(same_vocabulary_model)
    extra = {name: tensors[name] for name in ("attention_mask", "position_ids") if name in tensors}
    with torch.no_grad():
        log_p = model(tensors["input_ids"], **extra).logits.double().log_softmax(-1)
    labels = tensors["labels"]
    nll = -log_p.gather(2, labels.clamp_min(0)[..., None]).squeeze(2)
    valid = labels >= 0
    assert torch.equal(given["teacher_loss"].isfinite(), valid)
    torch.testing.assert_close(given["teacher_loss"][valid].double(), nll[valid], atol=1e-4, rtol=0)
    entropy = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(given["entropy"].double(), entropy, atol=1e-4, rtol=0)
    counts = dict(zip(("predicted", "kept"), batch.counts[:2].tolist(), strict=True))
    assert counts == {"predicted": int(valid.sum()), "kept": math.ceil(0.4 * int(valid.sum()))}


def test_two_criteria_keep_what_is_best_by_the_worse_place():
    """By hand: of five competitors two are kept; places by excess 0..4 from the left."""
    student = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 9.0]])
    teacher = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, NAN]])
    entropy = torch.tensor([[9.0, 1.0, 5.0, 0.0, 2.0, 0.0]])  # places 4, 1, 3, 0, 2
    labels = torch.zeros(1, 6, dtype=torch.int64)
    config = GuidanceConfig(method="rho1", criterion="excess_and_entropy", unmapped="exclude")
    weights = token_weights(student, teacher, labels, config, entropy)
    # Worse places: 4, 1, 3, 3, 4; the third and the fourth are equal, and the third is further
    # behind the teacher.
    assert weights.tolist() == [[0, 1, 1, 0, 0, 0]]
    with pytest.raises(ValueError, match="needs the teacher's entropies"):
        token_weights(student, teacher, labels, config)


def test_a_teacher_that_cannot_keep_documents_apart_is_refused(
    tmp_path, config, tokenizers, capsys
):
    from transformers import MambaConfig, MambaForCausalLM

    folder = tmp_path / "mamba"
    size = tokenizers["llama"].get_vocab_size()
    settings = MambaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(settings).save_pretrained(folder)
    tokenizers["llama"].save(str(folder / "tokenizer.json"))
    path = config(
        "run", folder, guidance={"method": "kld"}, teacher={"mode": "live"},
        data={"isolate": True},
    )  # fmt: skip
    assert train_here(path) == 2
    assert "MambaForCausalLM does not keep documents of a row apart" in capsys.readouterr().err


# --- kld and uld


@pytest.mark.parametrize("method", ["kld", "uld"])
def test_a_distance_of_no_weight_is_naive_training(tmp_path, config, method):
    teacher = {"mode": "live"}
    guidance = {"method": method, "distillation_weight": 0.0}
    assert train_here(config("none", guidance=guidance, teacher=teacher)) == 0
    assert train_here(config("some", guidance={"method": method}, teacher=teacher)) == 0
    assert train_here(config("cpt", guidance={"method": "cpt"})) == 0
    assert distance(tmp_path / "none", tmp_path / "cpt") < 1e-5
    assert distance(tmp_path / "some", tmp_path / "cpt") > 1e-3
    for entry in metrics(tmp_path / "some")[0]:
        assert entry["kept_fraction"] == 1.0
        assert entry["mean_distance"] > 0
        assert (entry["paired"] == 1.0) == (method == "kld")  # uld: not special tokens
        assert "mean_excess_loss" not in entry


def test_a_student_moves_away_from_itself(tmp_path, config, same_vocabulary_model, tokenizers):
    start = tmp_path / "start"
    tiny_llama(tokenizers["llama"].get_vocab_size(), seed=5).save_pretrained(start)
    tokenizers["llama"].save(str(start / "tokenizer.json"))
    student = {"model": str(start), "architecture": None, "eos": "</s>", "tokenizer": None}
    path = config(
        "run", start, student=student, guidance={"method": "kld"}, teacher={"mode": "live"}
    )
    assert train_here(path) == 0
    distances = [entry["mean_distance"] for entry in metrics(tmp_path / "run")[0]]
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert distances[-1] > 1e-4


def test_heads_may_be_larger_than_the_vocabulary(tmp_path, config):
    """Of both sides; what is compared are the ids that both tokenizers know."""
    from runs import ARCHITECTURE

    path = config(
        "run", guidance={"method": "kld"}, teacher={"mode": "live"},
        student={"architecture": {**ARCHITECTURE, "vocab_size": 700}},
    )  # fmt: skip
    assert train_here(path) == 0
    assert all(entry["mean_distance"] > 0 for entry in metrics(tmp_path / "run")[0])


@pytest.mark.parametrize("pairing", ["positional", "aligned"])
def test_uld_compares_the_tokens_it_says(tmp_path, rows, teacher_model, tokenizers, pairing):
    """Piece by piece with plain models, sorted distributions and the oracle's mapping."""
    from transformers import AutoModelForCausalLM

    store, texts = rows
    guidance = GuidanceConfig(method="uld", pairing=pairing)
    config = run_config(tmp_path, teacher_model, guidance)
    spans = TokenSpans(teacher_model)
    reader = text_reader(config.teacher, spans)
    live = LiveTeacher(config, spans, CPU)
    chosen = [store[index] for index in range(0, len(store), 3)]
    batch = Collator(LivePieces(texts, reader), guidance, config.data)(chosen)
    tensors = batch.to(CPU)
    given = live.guide(batch.live, tensors, live.plan(batch.live))
    model = tiny_llama(tokenizers["llama"].get_vocab_size())
    guided = GuidedStudent(model, guidance)
    output = guided(**tensors, **given)
    teacher = AutoModelForCausalLM.from_pretrained(teacher_model)
    total = pairs = 0
    with torch.no_grad():
        of_student = model(tensors["input_ids"]).logits.softmax(-1)
    for number, row in enumerate(chosen):
        before = 0
        for piece, text, begins in pieces(row):
            tokens = spans.encode([text])
            own = tokens.spans + begins
            before += len(piece)
            if not len(own):
                continue
            with torch.no_grad():
                of_teacher = teacher(torch.tensor(tokens.ids[None].astype(np.int64))).logits
            of_teacher = of_teacher[0].softmax(-1)
            mine = [i for i, (start, end) in enumerate(piece) if start < end]
            if pairing == "positional":
                partner = dict(zip(mine, range(len(own)), strict=False))
            else:
                mapping = oracle.align(piece, own)
                partner = {i: max(1, mapping[i, 0]) for i in mine if mapping[i, 1] > 1}
            for token, other in partner.items():
                place = before - len(piece) + token - 1
                if place < 0 or other == 0 or other >= len(own):
                    continue  # nothing predicts the first token of a row, or of a text without BOS
                p, q = of_student[number, place], of_teacher[other - 1]
                width = max(len(p), len(q))
                falling = [
                    torch.nn.functional.pad(
                        side.sort(descending=True).values, (0, width - len(side))
                    )
                    for side in (p, q)
                ]
                total += float((falling[0] - falling[1]).abs().sum())
                pairs += 1
    assert pairs > 100
    assert output.sums[SUMS.index("pairs")] == pairs
    assert float(output.sums[SUMS.index("distance")]) == pytest.approx(total, rel=1e-5)


def test_the_first_token_that_was_asked_for():
    asked = np.array([False, True, False, False, True])
    mapping = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [2, 5], [-1, -1], [4, 5]], np.int32)
    assert first_asked(mapping, asked).tolist() == [-1, 1, 1, -1, 4, -1, 4]


def test_positions_are_counted_over_tokens_with_text():
    student = np.array([[0, 0], [0, 1], [1, 2], [5, 6], [6, 7]], np.int32)
    teacher = np.array([[0, 2], [5, 5], [5, 6], [6, 7], [7, 8]], np.int32)
    mapping = positional_map(student, teacher, np.array([0, 3, 5]), np.array([0, 1, 5]))
    assert mapping.tolist() == [[-1, -1], [0, 1], [-1, -1], [2, 3], [3, 4]]


# --- chunk


def plain_chunk_weights(nll, teacher, labels, numbers, chunks, fraction, unmapped):
    """One row; chunks as lists of places."""
    members = [
        [i for i, n in enumerate(numbers) if n == c and labels[i] >= 0] for c in range(chunks)
    ]
    losses = [teacher[m[0]] if m else NAN for m in members]
    known = [c for c in range(chunks) if members[c] and np.isfinite(losses[c])]
    unknown = [c for c in range(chunks) if members[c] and c not in known]
    mean = np.mean([losses[c] for c in known]) if known else 0.0
    if unmapped == "mean":
        known, losses = sorted(known + unknown), [x if np.isfinite(x) else mean for x in losses]
        unknown = []
    excess = {c: np.mean([nll[i] for i in members[c]]) - losses[c] for c in known}
    ranked = sorted(known, key=lambda c: (-excess[c], c))
    chosen = ranked[: math.ceil(fraction * len(known))]
    chosen += unknown if unmapped == "include" else []
    return [float(any(i in members[c] for c in chosen)) for i in range(len(nll))]


@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_chunks_are_ranked_by_their_mean_loss(unmapped, fraction):
    rng = np.random.default_rng(1)
    sizes, chunks, width = [30, 17, 3, 0], 7, 32
    nll = rng.integers(0, 9, (4, width)).astype(np.float32) / 2  # ties, and exact sums
    teacher = np.full((4, width), np.nan, np.float32)
    numbers = np.full((4, width), -1)
    labels = np.where(rng.random((4, width)) < 0.8, 1, -100)
    for row, size in enumerate(sizes):
        numbers[row, :size] = chunk_numbers(size, chunks)
        losses = np.where(rng.random(chunks) < 0.7, rng.integers(0, 4, chunks), np.nan)
        teacher[row, :size] = losses[numbers[row, :size]]
        labels[row, size:] = -100
    config = GuidanceConfig(method="chunk", chunks=chunks, unmapped=unmapped, top_fraction=fraction)
    found = chunk_weights(
        torch.from_numpy(nll), torch.from_numpy(teacher), torch.from_numpy(labels),
        torch.from_numpy(numbers), config,
    )  # fmt: skip
    for row in range(4):
        expected = plain_chunk_weights(
            nll[row], teacher[row], labels[row], numbers[row], chunks, fraction, unmapped
        )
        assert found[row].tolist() == expected, row


def test_the_teacher_loss_of_a_chunk_is_of_the_same_part_of_its_tokens(tmp_path, rows, tokenizers):
    """Scores stand on whole documents; of them the part that shares text with the row counts."""
    store, _ = rows
    teacher = TokenSpans(tokenizers["byte-level"])
    rng = np.random.default_rng(2)

    class Whole:
        def __init__(self):
            self.of = {}

        def piece(self, document, first_byte, end_byte):
            if document not in self.of:
                spans = teacher.encode([DOCUMENTS[document]]).spans
                nll = rng.random(len(spans)).astype(np.float16)
                self.of[document] = DocumentScores(spans, nll)
            return self.of[document]

    scores = Whole()
    guidance = GuidanceConfig(method="chunk", chunks=4, aggregation="mean")
    collator = Collator(scores, guidance, DataConfig(train="unused", seq_len=SEQ_LEN))
    chosen = [store[index] for index in range(0, len(store), 2)]
    view = collator.aligned(chosen)
    before = 0
    for row in chosen:
        losses = []
        ends = np.cumsum(row.num_tokens)
        for document, stop, count in zip(row.documents, ends, row.num_tokens, strict=True):
            own = row.spans[stop - count : stop]
            of = scores.piece(document, 0, 0)
            first, last = own[:, 0].min(), own[:, 1].max()
            inside = [i for i, (s, e) in enumerate(of.spans) if s < e and s < last and e > first]
            losses += [float(of.nll[i]) for i in inside]
        n, m = len(row.ids), len(losses)
        for token in range(n):
            chunk = next(c for c in range(4) if c * n // 4 <= token < (c + 1) * n // 4)
            part = losses[chunk * m // 4 : (chunk + 1) * m // 4]
            wanted = np.float32(np.mean(part)) if part else np.float32(np.nan)
            np.testing.assert_allclose(view.loss[before + token], wanted, rtol=1e-5)
        before += n


def test_what_shares_text():
    spans = np.array([[0, 3], [3, 3], [3, 5], [5, 9], [9, 12], [0, 4]], np.int32)
    inside = sharing_text(spans, np.array([0, 5, 6]), [4, 4], [9, 9])
    assert inside.tolist() == [False, False, True, True, False, False]


def test_stored_and_live_cut_the_same_teacher_tokens(tmp_path, rows, tokenizers):
    """A dummy prefix before each live piece, and bytes that complete a character, are no text of
    the row."""
    from vocagno.training.reading import TextReader

    store, texts = rows
    teacher = TokenSpans(tokenizers["metaspace-always"])
    reader = TextReader(teacher, (), context=512, min_context=64)

    class Stored:
        def piece(self, document, first_byte, end_byte):
            spans = teacher.encode([DOCUMENTS[document]]).spans
            return DocumentScores(spans, np.zeros(len(spans), np.float16))

    guidance = GuidanceConfig(method="chunk", chunks=8)
    data = DataConfig(train="unused", seq_len=SEQ_LEN)
    stored, live = (
        Collator(which, guidance, data) for which in (Stored(), LivePieces(texts, reader))
    )
    same = 0
    for index in range(len(store)):
        views = [collator.aligned([store[index]]) for collator in (stored, live)]
        texts_of_chunks = [
            [tuple(view.teacher_spans[a:b][lengths(view.teacher_spans[a:b]) > 0].flatten())
             for a, b in view.mapping]
            for view in views
        ]  # fmt: skip
        same += texts_of_chunks[0] == texts_of_chunks[1]
    # Where a row begins inside a word, the live teacher cuts that word otherwise.
    assert same > len(store) / 2


def lengths(spans):
    return spans[:, 1] - spans[:, 0]


def test_a_row_with_a_document_that_is_not_scored_has_no_chunks(rows, tokenizers):
    from vocagno.score_index import NOT_SCORED

    store, _ = rows
    teacher = TokenSpans(tokenizers["byte-level"])

    class WithoutFirst:
        def piece(self, document, first_byte, end_byte):
            if document == 0:
                return NOT_SCORED
            spans = teacher.encode([DOCUMENTS[document]]).spans
            return DocumentScores(spans, np.zeros(len(spans), np.float16))

    guidance = GuidanceConfig(method="chunk", chunks=4)
    collator = Collator(WithoutFirst(), guidance, DataConfig(train="unused", seq_len=SEQ_LEN))
    chosen = [store[index] for index in range(6)]
    view, before = collator.aligned(chosen), 0
    for row in chosen:
        found = np.isfinite(view.loss[before : before + len(row.ids)])
        assert found.any() != (0 in row.documents)
        before += len(row.ids)


@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
def test_no_more_is_kept_than_the_host_expects(unmapped):
    rng = np.random.default_rng(3)
    for _ in range(50):
        labels = torch.from_numpy(np.where(rng.random((3, 20)) < 0.7, 1, -100))
        numbers = torch.from_numpy(np.stack([chunk_numbers(20, 6)] * 3))
        losses = rng.permuted([[1.0, NAN, 2.0, 3.0, NAN, 0.0]] * 3, axis=1).astype(np.float32)
        teacher = torch.from_numpy(losses).gather(1, numbers)
        nll = torch.from_numpy(rng.random((3, 20)).astype(np.float32))
        config = GuidanceConfig(method="chunk", chunks=6, unmapped=unmapped)
        kept = int(chunk_weights(nll, teacher, labels, numbers, config).sum())
        most = most_kept(labels, numbers, teacher, config)
        assert kept <= most < kept + 3 * 3 * 4


def test_a_random_choice_needs_no_teacher_and_does_not_depend_on_the_cut(tmp_path, config):
    guidance = {"method": "chunk", "selection": "random", "chunks": 4, "top_fraction": 0.5}
    for name, rows in (("whole", 8), ("cut", 2)):
        path = config(
            name, guidance=guidance, teacher={"model": None},
            train={"micro_batch": rows, "log_every": 1},
        )  # fmt: skip
        assert train_here(path) == 0
    logs = [metrics(tmp_path / name)[0] for name in ("whole", "cut")]
    for one, other in zip(*logs, strict=True):
        assert one["kept_fraction"] == other["kept_fraction"]
        assert one["kept_loss"] == pytest.approx(other["kept_loss"], rel=1e-5)
        assert 0.4 < one["kept_fraction"] < 0.6
    assert len({entry["kept_fraction"] for entry in logs[0]}) > 1
    assert not (tmp_path / "cache" / "scores").exists()


def test_random_scores_follow_from_seed_and_sample():
    scores = random_scores(0, range(3, 6), 8)
    assert scores.shape == (3, 8)
    assert torch.equal(scores[1:2], random_scores(0, [4], 8))
    assert not torch.equal(scores, random_scores(1, range(3, 6), 8))
    assert len(scores.unique()) == 24


@pytest.mark.parametrize("mode", ["stored", "live"])
def test_chunks_in_a_run(tmp_path, config, teacher_model, mode):
    path = config(
        "run", teacher_model, guidance={"method": "chunk", "chunks": 8},
        teacher={"mode": mode}, train={"log_every": 1, "sample_every": 3},
    )  # fmt: skip
    assert train_here(path) == 0
    for entry in metrics(tmp_path / "run")[0]:
        assert 0.35 < entry["kept_fraction"] < 0.6
        assert entry["coverage"] == 1.0
        assert 3 < entry["mean_excess_loss"] + entry["mean_teacher_loss"] < 8  # a mean student loss
    assert (tmp_path / "run" / "samples" / "step_3.html").is_file()


# --- configuration


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vocagno", "chunks": 8}, "guidance.chunks: is for guidance.method chunk, not"),
        ({"criterion": "excess_and_entropy"}, "guidance.criterion: is for guidance.method rho1"),
        ({"method": "kld", "pairing": "aligned"}, "guidance.pairing: is for guidance.method uld"),
        ({"distillation_weight": 1.0}, "is for guidance.method kld and uld, not vocagno"),
        ({"method": "uld", "distillation_weight": -1.0}, "distillation_weight is negative: -1.0"),
        ({"method": "chunk", "chunks": 0}, "guidance.chunks must be at least 1, got 0"),
        ({"method": "chunk", "scope": "step"}, "guidance.scope: step: chunks are ranked in"),
        ({"method": "chunk", "normalize": "selected"}, "guidance.normalize: selected: how many"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        GuidanceConfig(**options)


@pytest.mark.parametrize(
    ("guidance", "message"),
    [
        ({"method": "kld"}, "guidance.method: needs more of the teacher than its stored losses"),
        ({"method": "uld"}, "guidance.method: needs more of the teacher than its stored losses"),
        (
            {"method": "rho1", "criterion": "excess_and_entropy"},
            "guidance.criterion: needs more of the teacher than its stored losses",
        ),
    ],
)
def test_what_needs_a_live_teacher(config, capsys, guidance, message):
    assert train_here(config("run", guidance=guidance)) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_go_together(config, capsys):
    live = {"mode": "live"}
    for sections, message in (
        ({"guidance": {"method": "uld"}, "train": {"head_loss": "torch"}, "teacher": live},
         "train.head_loss: torch computes cross-entropy alone"),
        ({"guidance": {"method": "kld"}, "train": {"sample_every": 2}, "teacher": live},
         "with guidance.method: kld it chooses nothing"),
        ({"guidance": {"method": "chunk", "selection": "random"}, "train": {"sample_every": 2}},
         "with guidance.method: chunk at random it chooses nothing"),
        ({"guidance": {"method": "rho1"}, "teacher": {"model": None}},
         "guidance needs a teacher"),
    ):  # fmt: skip
        assert train_here(config("run", **sections)) == 2
        assert message in capsys.readouterr().err


def test_a_teacher_too_short_for_the_rows_is_refused_before_it_is_loaded(
    tmp_path, config, same_vocabulary_model, capsys
):
    short = shutil.copytree(same_vocabulary_model, tmp_path / "short")
    settings = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 16}))
    path = config(
        "run", short, guidance={"method": "kld"},
        teacher={"mode": "live", "context": 16, "min_context": 4},
    )  # fmt: skip
    assert train_here(path) == 2
    assert "data.seq_len: 32 tokens, but the teacher reads at most 16" in capsys.readouterr().err
