"""Stores made by processes together or in parts: what they note, how they are finished, how far
they are."""

import json
import random
import shutil
import threading
from contextlib import nullcontext

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("filelock")

from filelock import FileLock

from corpora import write_corpus
from folders import contents
from vocagno.data.corpus import scan
from vocagno.data.prepare import TEXTS, TextShard, TextStore, write_texts
from vocagno.data.rows import ROWS
from vocagno.data.store.building import Part, finish_parts, make_store
from vocagno.data.store.format import MANIFEST
from vocagno.data.store.shards import MAKING, StoreError
from vocagno.data.store.state import (
    Claim,
    Notes,
    existing,
    noted_shards,
    shard_bytes_of,
    shard_name,
    state_of,
)
from vocagno.system import files, shared_work
from vocagno.system.shared_work import LOCKS

MADE_FROM = {"format": "texts 1"}


def texts(count):
    return [f"document {number}" for number in range(count)]


@pytest.fixture
def corpus(tmp_path):
    """Builds a corpus with a shard for each document."""

    def build(count=7):
        path = write_corpus(tmp_path / f"{count}.jsonl", texts(count))
        return scan(path, tmp_path / "cache", shard_bytes=1)

    return build


def make(corpus, folder, part=None, made_from=MADE_FROM, stop_after=None):
    """Makes the store, or begins it."""
    made = []

    def make_one(shard, path, _):
        if len(made) == stop_after:
            raise KeyboardInterrupt
        documents = corpus.read_shard(shard)
        write_texts(path, documents.texts, documents.hashes, made_from)
        made.append(path.stem)

    make_store(corpus, folder, TEXTS, made_from, make_one, show_progress=False, part=part)
    return made


@pytest.fixture
def unread(monkeypatch):
    """No shard is read for its checksums."""

    def refuse(*_):
        raise AssertionError("a shard was read")

    monkeypatch.setattr(TextShard, "check", refuse)


@pytest.mark.parametrize("stop_after", [None, 2])
def test_a_store_with_shards_of_another_size_says_so(tmp_path, stop_after):
    """And is found by its own size, finished or not; another text is still another text."""
    path, folder = write_corpus(tmp_path / "c.jsonl", texts(7)), tmp_path / "store"
    assert shard_bytes_of(folder) is None
    with pytest.raises(KeyboardInterrupt) if stop_after else nullcontext():
        make(scan(path, shard_bytes=15), folder, stop_after=stop_after)
    with pytest.raises(
        StoreError, match=r"in shards of 15 bytes of text \(--shard_bytes 15\), not"
    ):
        make(scan(path), folder)
    assert shard_bytes_of(folder) == 15
    assert len(make(scan(path, shard_bytes=15), folder)) == (2 if stop_after else 0)
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns(LOCKS))
    (copy / MANIFEST).unlink(missing_ok=True)
    with pytest.raises(StoreError, match="its shards have another size: give --shard_bytes"):
        make(scan(path), copy)
    write_corpus(path, texts(8))
    with pytest.raises(StoreError, match="of another text"):
        make(scan(path, shard_bytes=15), folder)


def test_a_damaged_claim_is_named(tmp_path, corpus):
    """What a full disk leaves. Without it the store is finished, and its shards are kept."""
    with pytest.raises(KeyboardInterrupt):
        make(corpus(), tmp_path, stop_after=2)
    for content in ("", "[]", '{"kind": "texts"}'):
        (tmp_path / LOCKS / "made-from.json").write_text(content)
        with pytest.raises(StoreError, match=r"made-from\.json: this note .* is damaged .* delete"):
            make(corpus(), tmp_path)
    (tmp_path / LOCKS / "made-from.json").unlink()
    assert len(make(corpus(), tmp_path)) == 5


def test_finishing_reads_no_shard_that_was_noted(tmp_path, corpus, unread):
    make(corpus(), tmp_path / "store")
    assert not (tmp_path / "store" / MAKING).exists()
    assert len(TextStore(tmp_path / "store")) == 7


def test_notes_and_shards_give_the_same_manifest(tmp_path, corpus, monkeypatch):
    make(corpus(), tmp_path / "noted")
    monkeypatch.setattr(Notes, "add", lambda *_: None)
    make(corpus(), tmp_path / "read")
    assert contents(tmp_path / "read") == contents(tmp_path / "noted")


def test_a_note_counts_only_while_its_shard_is_the_same(tmp_path, corpus):
    folder = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        make(corpus(), folder, stop_after=4)
    assert sorted(noted_shards(folder)) == [shard_name(number, 7) for number in range(4)]
    (folder / "shard-00001.arrow").write_bytes(b"torn")
    (notes,) = (folder / MAKING).glob("*.jsonl")
    lines = notes.read_text().splitlines(keepends=True)
    other = json.loads(lines[2])
    other["entry"]["file_hash"] = "0" * 32  # made twice, with other bytes
    notes.write_text("".join(lines[:3]) + json.dumps(other) + "\n" + lines[3][:-5])
    assert sorted(noted_shards(folder)) == ["shard-00000"]


def test_parts_are_finished_together(tmp_path, corpus):
    make(corpus(), tmp_path / "whole")
    folder = tmp_path / "parts"
    with pytest.raises(StoreError, match="no store is being made here in parts"):
        finish_parts(folder, TEXTS)
    made = [make(corpus(), folder, Part(number, 3)) for number in (1, 3)]
    assert [len(names) for names in made] == [2, 3]
    with pytest.raises(StoreError, match=r"2 of 7 shards are missing \(numbers 2, 3\); run their"):
        finish_parts(folder, TEXTS)
    assert make(corpus(), folder, Part(1, 3)) == []
    assert make(corpus(), folder, Part(2, 3)) == ["shard-00002", "shard-00003"]
    assert [path.name for path in (folder / ".locks").iterdir()] == ["made-from.json"]
    finish_parts(folder, TEXTS)
    assert contents(folder) == contents(tmp_path / "whole")
    shutil.rmtree(folder / ".locks")
    finish_parts(folder, TEXTS)  # nothing is left to do
    assert make(corpus(), folder, Part(2, 3)) == []
    (folder / "shard-00002.arrow").unlink()
    (folder / "shard-00004.arrow").write_bytes(b"torn")
    lost = r"2 of 7 shards of this finished store \(shard-00002.arrow, shard-00004.arrow\) are"
    with pytest.raises(StoreError, match=lost):
        finish_parts(folder, TEXTS)


@pytest.mark.parametrize("notes", ["whole", "missing"])
def test_parts_of_two_stores_are_not_finished_as_one(tmp_path, corpus, notes):
    """As after a copy without `.locks`, of a folder in which one part is still to be made."""
    folder, other = tmp_path / "store", {"format": "texts 0"}
    make(corpus(), folder, Part(1, 2))
    shutil.rmtree(folder / ".locks")
    with pytest.raises(StoreError, match=r"shard-00000.arrow: was made with another format"):
        make(corpus(), folder, Part(2, 2), made_from=other)
    make(corpus(), tmp_path / "other", Part(2, 2), made_from=other)
    shutil.copytree(tmp_path / "other", folder, dirs_exist_ok=True)
    if notes == "missing":
        shutil.rmtree(folder / MAKING)
    wrong = [shard_name(number, 7) for number in (3, 4, 5, 6)]
    with pytest.raises(
        StoreError,
        match=rf"4 of 7 shards \({', '.join(wrong)}\) were made with another format "
        r"\(texts 0, the others texts 1\); delete the wrong ones and \.locks, and make them again",
    ):
        finish_parts(folder, TEXTS)
    for name in wrong:
        (folder / f"{name}.arrow").unlink()
    shutil.rmtree(folder / ".locks")
    assert len(make(corpus(), folder, Part(2, 2))) == 4
    finish_parts(folder, TEXTS)
    make(corpus(), tmp_path / "whole")
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("part", [None, Part(1, 2)])
def test_shards_of_another_text_are_not_finished(tmp_path, corpus, part):
    """As after a copy from the store of a text that has as many shards."""
    folder, other = tmp_path / "store", tmp_path / "other"
    write_corpus(tmp_path / "o.jsonl", [text.upper() for text in texts(7)])
    make(scan(tmp_path / "o.jsonl", tmp_path / "cache", shard_bytes=1), other)
    make(corpus(), folder, Part(1, 2))
    for path in sorted(other.glob("*.arrow"))[3:]:
        shutil.copy(path, folder)
    with pytest.raises(StoreError, match=r"some shards are of another text than the store; del"):
        finish_parts(folder, TEXTS) if part else make(corpus(), folder)
    assert not (folder / MANIFEST).exists()
    shutil.rmtree(folder / ".locks")
    with pytest.raises(StoreError, match=r"shard-0000[3-6].arrow: was made with another text"):
        make(corpus(), folder, part and Part(2, 2))


@pytest.mark.parametrize("part", [None, Part(2, 3)])
def test_nothing_else_is_made_there(tmp_path, corpus, part):
    folder = tmp_path / "store"
    make(corpus(), folder, Part(1, 3))
    with pytest.raises(StoreError, match=r"texts of another text .* are being made here"):
        make(corpus(5), folder, part)
    with pytest.raises(StoreError, match=r"texts of another format \(texts 1, now texts 2\)"):
        make(corpus(), folder, part, made_from={"format": "texts 2"})


def test_a_claim_without_a_size_of_shards_does_not_speak_of_one(tmp_path, corpus):
    """`vocagno bake` makes such claims. The size is another one, too, but no size helps."""
    Claim("losses", "", 2, MADE_FROM).save(tmp_path / "store")
    with pytest.raises(StoreError, match=r"losses of another kind \(losses, now texts\) are being"):
        make(corpus(), tmp_path / "store")


def test_a_part_does_not_repair_a_finished_store(tmp_path, corpus, capsys):
    make(corpus(), tmp_path / "store")
    whole = contents(tmp_path / "store")
    (tmp_path / "store" / "shard-00003.arrow").unlink()
    (tmp_path / "store" / "shard-00004.arrow").write_bytes(whole["shard-00004.arrow"][:900])
    with pytest.raises(StoreError, match="run without --shards"):
        make(corpus(), tmp_path / "store", Part(1, 2))
    assert make(corpus(), tmp_path / "store") == ["shard-00003", "shard-00004"]
    assert contents(tmp_path / "store") == whole
    assert "making 2 missing or truncated shards again" in capsys.readouterr().err


@pytest.mark.slow
def test_thousands_of_shards_have_folders(tmp_path, corpus):
    folder = tmp_path / "store"
    make(corpus(1001), folder)
    assert (folder / "000" / "shard-00999.arrow").is_file()
    assert (folder / "001" / "shard-01000.arrow").is_file()
    assert [path.name for path in folder.glob("*.arrow")] == []
    store = TextStore(folder)
    assert store.piece(1000, 0, 100)[0] == "document 1000"
    assert list(store.damages()) == []
    assert make(corpus(1001), folder) == []


@pytest.mark.parametrize("name", ["../a", "a/b/c", "/a", ".a", "a/.b", "a/", "", "C:a", "a\\b"])
def test_names_outside_the_folder_are_refused(tmp_path, corpus, name):
    from vocagno.data.store.format import check_names

    with pytest.raises(StoreError, match="invalid"):
        check_names([name], tmp_path)


def test_the_state_counts_finished_and_locked_shards(tmp_path, corpus):
    """Sees a shard counted as done while it is being made, and time left at another speed."""
    folder, small_corpus = tmp_path / "store", corpus()
    before = state_of(small_corpus, folder, TEXTS)
    assert (before["shards"], before["shards_done"], before["finished"]) == (7, 0, False)
    assert "seconds_left" not in before
    with pytest.raises(KeyboardInterrupt):
        make(small_corpus, folder, stop_after=3)
    with FileLock(folder / ".locks" / "shard-00005"):
        middle = state_of(small_corpus, folder, TEXTS)
    assert (middle["shards_done"], middle["shards_under_way"], middle["finished"]) == (3, 1, False)
    assert middle["text_bytes_done"] == sum(len(text) for text in texts(3))
    assert middle["text_bytes_per_second"] > 0
    left = middle["text_bytes"] - middle["text_bytes_done"]
    expected = left / middle["text_bytes_per_second"]
    assert middle["seconds_left"] == pytest.approx(expected, abs=1)
    make(small_corpus, folder)
    after = state_of(small_corpus, folder, TEXTS)
    assert (after["shards_done"], after["shards_under_way"], after["finished"]) == (7, 0, True)


def test_a_shard_without_text_has_no_speed(tmp_path):
    """The seconds left would be divided by its bytes."""
    (tmp_path / "corpus").mkdir()
    for name, document in (("a.jsonl", ""), ("b.jsonl", "text")):
        write_corpus(tmp_path / "corpus" / name, [document])
    corpus, folder = scan(tmp_path / "corpus", tmp_path / "cache"), tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        make(corpus, folder, stop_after=1)
    state = state_of(corpus, folder, TEXTS)
    assert (state["shards_done"], state["text_bytes_done"]) == (1, 0)
    assert "seconds_left" not in state


@pytest.mark.parametrize("begun", ["finished", "claimed", "copied"])
def test_how_far_another_store_is_is_not_said(tmp_path, corpus, begun):
    folder, same, other = tmp_path / "store", corpus(7), corpus(5)
    make(same, folder, None if begun == "finished" else Part(1, 2))
    if begun == "copied":
        shutil.rmtree(folder / ".locks")
        first = write_corpus(tmp_path / "other.jsonl", ["first", *texts(4)])
        other = scan(first, tmp_path / "cache", shard_bytes=1)
    assert state_of(same, folder, TEXTS)["shards_done"] > 0
    with pytest.raises(StoreError, match=r"contains another store than texts of .*; name the cor"):
        state_of(other, folder, TEXTS)
    with pytest.raises(StoreError, match=r"another store than rows|holds texts, expected rows"):
        state_of(same, folder, ROWS)


@pytest.mark.slow
def test_a_process_that_meets_another_continues_elsewhere(tmp_path, monkeypatch):
    """Sees many processes that try the same locks one after the other, and an item that is lost or
    made twice."""
    monkeypatch.setattr(shared_work, "_SPREAD", random.Random(1))
    names, made = [f"{number // 4}/item-{number}" for number in range(40)], []

    def make_one(name):
        made.append(name)
        (tmp_path / name).write_text("")

    def work():
        shared_work.share(
            names, tmp_path, done=lambda name: (tmp_path / name).exists(), make=make_one
        )

    (tmp_path / ".locks" / "0").mkdir(parents=True)
    with FileLock(tmp_path / ".locks" / names[0]):
        assert shared_work.is_locked(names[0], tmp_path)
        assert not shared_work.is_locked(names[1], tmp_path)
        worker = threading.Thread(target=work)
        worker.start()
        worker.join(1)
        assert worker.is_alive()
        assert sorted(made) == sorted(names[1:])
    worker.join(30)
    assert made[0] != names[1]
    assert made[-1] == names[0]
    first = names.index(made[0])
    assert made[: 40 - first] == names[first:]  # in order from there


def test_parts_cover_all_shards_once():
    for count in (1, 5, 8, 100):
        items = list(range(37))
        parts = [Part(number, count).of(items) for number in range(1, count + 1)]
        assert [item for part in parts for item in part] == items
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_many_shards_are_found_by_the_lists_of_files(tmp_path):
    names = [shard_name(number, 3000) for number in range(3000)]
    (tmp_path / "001").mkdir()
    (tmp_path / "001" / "shard-01234.arrow").touch()
    assert existing(tmp_path, names) == {"001/shard-01234"}


@pytest.mark.parametrize("links", [True, False])
def test_of_two_claims_at_the_same_moment_one_is_refused(tmp_path, monkeypatch, links):
    """The second process has seen no claim when the first one makes its own."""
    claim_a, claim_b = (Claim("scores", "text", 2, {"teacher": name}) for name in "AB")
    monkeypatch.setattr("vocagno.data.store.state.write_new_json", slowly(claim_b, tmp_path))
    if links:
        with pytest.raises(StoreError, match=r"another teacher \(B, now A\) are being made here"):
            claim_a.save(tmp_path)
        return
    monkeypatch.setattr(files.os, "link", refuse_links)
    assert not claim_a.save(tmp_path)  # the best there is: finishing refuses the mixture
    with pytest.raises(StoreError, match=r"another teacher \(A, now B\) are being made here"):
        claim_b.save(tmp_path)


def slowly(other, folder):
    """Writes a claim when another process has made its own."""
    write = files.write_new_json

    def wait(path, fields):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vocagno.data.store.state.write_new_json", write)
            other.save(folder)
        write(path, fields)

    return wait


def refuse_links(*_):
    raise PermissionError(1, "Operation not permitted")
