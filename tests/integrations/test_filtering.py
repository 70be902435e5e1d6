"""A filtered corpus has the other lines, and all fields, whatever its form; is shared by processes
and resumed after kills; and mistakes are named before they cost something."""

import gzip
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import write_corpus
from folders import contents
from noisy_texts import JUNK, NOISY, without_noise, write_line_losses
from runs import environment
from vocagno.data.corpus import scan
from vocagno.data.corpus_files import CorpusError
from vocagno.data.store.shards import StoreError
from vocagno.errors import InputError
from vocagno.integrations import filtering
from vocagno.integrations.filtering import MANIFEST, FilterRule, NoiseFilter, filter_corpus
from vocagno.teacher.score_store import REFUSED_BY_TEACHER
from warm_python import executable

RECORDS = [
    {"id": number, "text": text, "meta": {"é": [1, None, 2.5]}} for number, text in enumerate(NOISY)
]
LEFT = [{**record, "text": without_noise(record["text"])} for record in RECORDS]
LEFT = [record for record in LEFT if record["text"] or not NOISY[record["id"]]]
ADDED = {"teacher_nats_per_byte", "omitted_share"}
REPORTS = "report.md", "report.html"


@pytest.fixture
def store(tmp_path, tokenizers):
    return write_line_losses(tmp_path / "scores", tokenizers["byte-level"], NOISY)


def write_records(path, records=RECORDS):
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=4)
    elif path.suffix == ".zst":
        with pa.output_stream(path, compression="zstd") as file:
            file.write(content)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read_records(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = pa.input_stream(io.BytesIO(content), compression="zstd").read()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in content.splitlines()]


def run(path, store, out, *, allow_most=False, **rule):
    """The manifest of a corpus that is filtered in several shards."""
    corpus = scan(path, shard_bytes=300)
    return filter_corpus(corpus, store, out, FilterRule(**rule), allow_most=allow_most)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_the_other_lines_and_all_fields_stay(tmp_path, store, suffix):
    path, out = write_records(tmp_path / "in" / f"c.{suffix}"), tmp_path / "out"
    fields = run(path, store, out)
    records = read_records(out / path.name)
    assert [{k: v for k, v in record.items() if k not in ADDED} for record in records] == LEFT
    assert [*records[0]] == [*RECORDS[0], "teacher_nats_per_byte", "omitted_share"]
    by_id = {record["id"]: record for record in records}
    assert by_id[9]["teacher_nats_per_byte"] == pytest.approx(0.5, abs=0.01)
    assert by_id[9]["omitted_share"] == 0
    size = len(NOISY[0].encode())
    assert by_id[0]["omitted_share"] == pytest.approx(len(JUNK) / size, abs=1e-6)
    assert by_id[11]["teacher_nats_per_byte"] is None
    counts = fields["counts"]
    assert (counts["documents"], counts["omitted_documents"]) == (12, 1)
    assert counts["shortened_documents"] == 9
    assert counts["bytes"] == sum(len(text.encode()) for text in NOISY)
    left = sum(len(record["text"].encode()) for record in LEFT)
    assert counts["omitted_bytes"] == counts["bytes"] - left
    assert [*fields["files"]] == [path.name]
    assert {file.name for file in out.iterdir()} == {".locks", MANIFEST, *REPORTS, path.name}
    before = contents(out)
    assert run(path, store, out) == fields
    assert contents(out) == before


def test_marks_are_ranges_of_characters(tmp_path, store):
    for suffix in ("jsonl", "parquet"):
        path, out = write_records(tmp_path / "in" / f"c.{suffix}"), tmp_path / suffix
        run(path, store, out, keep="marks")
        records = read_records(out / path.name)
        assert [record["text"] for record in records] == NOISY
        for record in records:
            text = record["text"]
            for start, stop in reversed(record["omitted_ranges"]):
                assert all(line[0] == "#" for line in text[start:stop].splitlines())
                text = text[:start] + text[stop:]
            assert text == without_noise(record["text"])


def test_unit_document_omits_whole_documents(tmp_path, store):
    path = write_records(tmp_path / "in" / "c.jsonl")
    fields = run(path, store, tmp_path / "out", unit="document")
    records = read_records(tmp_path / "out" / "c.jsonl")
    assert [record["text"] for record in records] == [NOISY[n] for n in (*range(10), 11)]
    assert fields["counts"]["omitted_documents"] == 1
    assert [example["place"] for example in fields["examples"]] == ["c.jsonl, line 11"]


def test_prompts_are_read_and_not_judged(tmp_path, tokenizers):
    prompts = [JUNK + "What is it?\n"] * 2
    completions = ["It is 42.\n" + JUNK + "So x = 42.", JUNK]
    texts = [a + b for a, b in zip(prompts, completions, strict=True)]
    store = write_line_losses(tmp_path / "scores", tokenizers["byte-level"], texts)
    pairs = zip(prompts, completions, strict=True)
    records = [{"prompt": a, "completion": b, "n": 1} for a, b in pairs]
    path = write_records(tmp_path / "in" / "c.jsonl", records)
    run(path, store, tmp_path / "out", allow_most=True)
    (record,) = read_records(tmp_path / "out" / "c.jsonl")
    assert (record["prompt"], record["completion"]) == (prompts[0], "It is 42.\nSo x = 42.")
    share = len(JUNK) / len(completions[0].encode())
    assert record["omitted_share"] == pytest.approx(share, abs=1e-6)
    run(path, store, tmp_path / "marks", allow_most=True, keep="marks")
    record, other = read_records(tmp_path / "marks" / "c.jsonl")
    ((start, stop),) = record["omitted_ranges"]
    assert texts[0][start:stop] == JUNK
    assert texts[1][slice(*other["omitted_ranges"][0])] == JUNK


def test_a_folder_stays_a_folder_and_text_files_become_records(tmp_path, store):
    folder = tmp_path / "in"
    write_records(folder / "a.jsonl", RECORDS[:4])
    write_records(folder / "b.parquet", RECORDS[4:8])
    (folder / "x.txt").write_text(NOISY[8])
    (folder / "y.txt").write_text(NOISY[9])
    fields = run(folder, store, tmp_path / "out")
    assert [*fields["files"]] == ["a.jsonl", "b.parquet", "texts.jsonl"]
    records = read_records(tmp_path / "out" / "texts.jsonl")
    assert [record["text"] for record in records] == [without_noise(NOISY[8]), NOISY[9]]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "a.jsonl" in report
    assert f'6.00  a.jsonl, line 1  "{JUNK.strip()}"' in report
    assert sum(rows["documents"] for rows in fields["files"].values()) == 10
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{JUNK.strip()}</td>" in page
    assert "a.jsonl, line 1" in page
    write_records(folder / "texts.jsonl", RECORDS[:1])
    with pytest.raises(InputError, match=r"2 of its files would be written as texts\.jsonl"):
        run(folder, store, tmp_path / "other")


def test_a_prompt_alone_without_scores_is_dropped(store):
    noise = NoiseFilter(store, FilterRule(missing="drop"))
    (judged,) = noise.judge(["A question?"], prompt_bytes=[len("A question?")])
    assert noise.rewrite(judged).text is None


@pytest.mark.parametrize("missing", ["error", "keep", "drop"])
def test_documents_without_scores(tmp_path, store, missing):
    """Of a run that stopped at them, the same folder takes another answer."""
    records = [*RECORDS, {"text": "New here.\nOf two lines.", "id": 99, "meta": None}]
    path, out = write_records(tmp_path / "in" / "c.jsonl", records), tmp_path / "out"
    with pytest.raises(StoreError, match=r"no scores of 1 of the .* is c\.jsonl, line 13: edited"):
        run(path, store, out)
    assert not (out / "c.jsonl").exists()
    if missing == "error":
        return
    fields = run(path, store, out, missing=missing)
    assert fields["counts"]["missing_documents"] == 1
    *_, last = read_records(out / "c.jsonl")
    assert (last["id"] == 99) == (missing == "keep")
    with pytest.raises(StoreError, match="filtered with another missing"):
        run(path, store, out)


def test_a_file_of_another_rule_for_documents_without_scores_is_made_again(
    tmp_path, store, monkeypatch
):
    """The first run stops after it has joined one of two files."""
    new = {"text": "New here.\nOf two lines.", "id": 99, "meta": None}
    folder, out = tmp_path / "in", tmp_path / "out"
    for name in ("a.jsonl", "b.jsonl"):
        write_records(folder / name, [*RECORDS, new])
    join, joined = filtering._FilteredFiles.join, []

    def join_one(self, file):
        if joined:
            raise KeyboardInterrupt
        joined.append(file)
        join(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(filtering._FilteredFiles, "join", join_one)
        with pytest.raises(KeyboardInterrupt):
            run(folder, store, out, missing="keep")
    assert read_records(out / joined[0])[-1]["id"] == 99
    assert run(folder, store, out, missing="drop")["missing"] == "drop"
    for name in ("a.jsonl", "b.jsonl"):
        assert 99 not in [record["id"] for record in read_records(out / name)]


def test_folders_and_rules_that_cannot_be_used_are_named(tmp_path, store):
    path, out = write_records(tmp_path / "in" / "c.jsonl"), tmp_path / "out"
    with pytest.raises(InputError, match="holds the corpus itself"):
        run(path, store, path.parent)
    out.mkdir()
    (out / "c.jsonl").write_text("of another")
    with pytest.raises(InputError, match=r"c\.jsonl exists already; name an empty folder"):
        run(path, store, out)
    assert (out / "c.jsonl").read_text() == "of another"
    (out / "c.jsonl").unlink()
    with pytest.raises(InputError, match=r"of the bytes of c\.jsonl are noise .* add --yes"):
        run(path, store, out, window_max_loss=0.1)
    assert not (out / "c.jsonl").exists()
    with pytest.raises(StoreError, match=r"another window max loss \(0\.1, now 2\.0\) are being"):
        run(path, store, out)
    run(path, store, out, window_max_loss=0.1, allow_most=True)
    assert len(read_records(out / "c.jsonl")) == 1  # the empty document
    with pytest.raises(StoreError, match="filtered with another unit"):
        run(path, store, out, window_max_loss=0.1, unit="document")
    (out / "c.jsonl").unlink()
    with pytest.raises(StoreError, match=r"c\.jsonl is gone; delete the folder"):
        run(path, store, out, window_max_loss=0.1, allow_most=True)
    run(path, store, tmp_path / "once")
    records = read_records(tmp_path / "once" / "c.jsonl")
    for suffix in ("jsonl", "parquet"):
        again = write_records(tmp_path / "d" / f"c.{suffix}", records)
        with pytest.raises(CorpusError, match=r"has a field `teacher_nats_per_byte` already"):
            run(again, store, tmp_path / f"twice.{suffix}", missing="keep")
    corpus = scan(path)
    write_corpus(path, [text.upper() for text in NOISY])
    with pytest.raises(CorpusError, match="has changed since it was read"):
        filter_corpus(corpus, store, tmp_path / "changed", FilterRule())


def test_a_document_that_the_teacher_could_not_read_stays(store, monkeypatch):
    noise = NoiseFilter(store, FilterRule(missing="drop"))
    monkeypatch.setattr(noise._scores, "find", lambda _: [REFUSED_BY_TEACHER])
    (judged,) = noise.judge([NOISY[0]])
    assert (judged.missing, judged.rest(), judged.nats_per_byte) == ("", NOISY[0], None)


def test_scores_that_do_not_fit_the_text_are_damaged(store, monkeypatch):
    noise = NoiseFilter(store, FilterRule())
    scores = noise._scores.find([NOISY[0]])
    monkeypatch.setattr(noise._scores, "find", lambda _: scores)
    with pytest.raises(StoreError, match="out of order or outside its text"):
        noise.judge(["short"])


SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "killed_filtering.py"


@pytest.fixture
def command(tmp_path, tokenizers):
    texts = [f"{n} {text}" for n, text in enumerate(NOISY * 90)]
    write_line_losses(tmp_path / "many", tokenizers["byte-level"], texts, per_shard=99)
    path = write_corpus(tmp_path / "c.jsonl", texts)

    def command(out, point="none", turn=0):
        arguments = "filter", path, "--scores", tmp_path / "many", "--out", out
        words = SCRIPT, point, turn, *arguments, "--cache", tmp_path / "cache"
        return [executable(), *map(str, words)]

    return command


def start(words):
    return subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_after_kills_and_with_several_processes_the_bytes_are_the_same(command, tmp_path):
    whole = start(command(tmp_path / "whole"))
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    killed = tmp_path / "killed"
    kills = ("write_part", 1), ("_json_line", 300), ("write_json", 2), ("join_parts", 1)
    for kill in (*kills, ("copyfileobj", 2), ("report_of", 1)):
        process = start(command(killed, *kill))
        _, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (kill, errors)
        assert (killed / "c.jsonl").exists() == (kill[0] == "report_of")
    started = [start(command(killed)), *(start(command(tmp_path / "shared")) for _ in range(2))]
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    expected = contents(tmp_path / "whole")
    assert contents(killed) == contents(tmp_path / "shared") == expected
    assert len(json.loads(expected[MANIFEST])["examples"]) > 0
