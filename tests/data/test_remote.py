"""Stores on S3: the promises of a folder, and a cache of bounded size."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("filelock")

from corpora import write_corpus
from folders import contents
from runs import started
from vocagno.data.corpus import scan
from vocagno.data.prepare import TEXTS, TextStore, write_texts
from vocagno.data.store.building import Part, finish_parts, make_store
from vocagno.data.store.remote import publish
from vocagno.data.store.shards import StoreError
from vocagno.data.store.state import state_of
from vocagno.errors import ConfigError
from vocagno.system.addresses import Address, AddressError, path_of
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore, write_scores

SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "killed_publishing.py"
STORE = "s3://texts/store"
MADE_FROM = {"format": "texts 1"}

pytestmark = pytest.mark.slow


@pytest.fixture
def corpus(tmp_path):
    """Seven shards of a document each."""
    path = write_corpus(tmp_path / "c.jsonl", [f"document {n}" for n in range(7)])
    return scan(path, shard_bytes=1)


def make(corpus, folder, part=None, made_from=MADE_FROM, then=lambda number: None, nll=None):
    """Makes the store, of texts or of such losses. Returns the numbers of the shards that were
    made."""
    made = []

    def make_one(shard, path, _):
        documents = corpus.read_shard(shard)
        if nll is None:
            write_texts(path, documents.texts, documents.hashes, made_from)
        else:
            scores = DocumentScores(np.array([[0, 10]], np.int32), np.array([nll], np.float16))
            write_scores(path, documents.hashes, [scores], made_from)
        made.append(shard.first_document)
        then(shard.first_document)

    kind = TEXTS if nll is None else SCORES
    make_store(corpus, folder, kind, made_from, make_one, show_progress=False, part=part)
    return made


def start(corpus, part, attempts):
    return started(sys.executable, SCRIPT, corpus.name, STORE, part, json.dumps(attempts))


def records(process):
    """The numbers of the shards that the attempts made, and which of these were killed."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors[-2000:]
    events = [json.loads(line) for line in output.splitlines()]
    ends = [event for event in events if isinstance(event, bool)]
    return [event for event in events if not isinstance(event, bool)], ends


def test_the_form_of_addresses():
    """Sees an address whose slashes were merged, and a path or a drive that is taken for one."""
    for path in ("s3://a/b", "s3:/a/b", Path("s3://a/b"), Address("s3://a//b")):
        assert [str(path_of(path)), str(path_of(path) / "c")] == ["s3://a/b", "s3://a/b/c"]
    for path in ("a/b", "C:/a", "file:///a", "/s3:/a", "a:b"):
        assert not isinstance(path_of(path), Address)
    for path in ("s3://", "s3:/"):
        with pytest.raises(AddressError, match="an address needs a bucket or a folder"):
            path_of(path)
    with pytest.raises(AddressError, match=r"^s3://a/b: expected a folder of this machine"):
        path_of("s3://a/b").mkdir()


def test_the_bytes_of_a_folder(corpus, server, tmp_path):
    make(corpus, tmp_path / "store")
    assert make(corpus, Path(STORE)) == list(range(7))
    assert server.objects("store") == contents(tmp_path / "store")
    assert make(corpus, STORE) == []
    state = state_of(corpus, path_of(STORE), TEXTS)
    assert (state["finished"], state["shards_done"]) == (True, 7)
    for name in server.objects("store").keys() - {"manifest.json"}:
        server.change(f"copy/{name}", (tmp_path / "store" / name).read_bytes())
    state = state_of(corpus, path_of("s3://texts/copy"), TEXTS)
    assert (state["finished"], state["shards_done"]) == (False, 7)
    store = TextStore(STORE)
    assert [store.piece(n, 0, 10)[0] for n in (6, 0)] == ["document 6", "document 0"]
    assert list(store.damages()) == []
    with pytest.raises(StoreError, match=r"^s3://texts/store: contains finished texts of another"):
        make(corpus, STORE, made_from={"format": "texts 2"})
    for store in (TextStore, ScoreStore):
        with pytest.raises(StoreError, match=r"^s3://texts/other: .* does not exist"):
            store("s3://texts/other")


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_kills_and_other_machines_change_no_byte(corpus, server, tmp_path):
    """No shard is made twice that was uploaded, by any machine, or was whole on the same one. The
    sixth kill leaves the last shard on one machine, and the other makes it, too."""
    make(corpus, tmp_path / "whole")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    kills = [["before", 1, a], ["after", 1, a], ["before", 2, a], ["after", 2, a], ["after", 2, b]]
    kills += [["before", 2, a], ["before", 2, b], ["after", 1, a]]
    made, died = records(start(corpus, "1/1", [*kills, ["never", 0, b]]))
    assert died == [True] * len(kills) + [False]
    assert made == [0, 1, 2, 3, 4, 5, 6, 6]
    assert server.objects("store") == contents(tmp_path / "whole")


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_parts_of_two_machines(corpus, server, tmp_path):
    make(corpus, tmp_path / "whole")
    machines = [start(corpus, f"{n}/2", [["never", 0, str(tmp_path / str(n))]]) for n in (1, 2)]
    (first, _), (second, _) = map(records, machines)
    assert (first, second) == ([0, 1, 2], [3, 4, 5, 6])
    server.change("store/shard-00004.arrow", None)
    with pytest.raises(StoreError, match=rf"^{STORE}: 1 of 7 shards are missing \(numbers 4"):
        finish_parts(Path(STORE), TEXTS)
    assert make(corpus, STORE, Part(2, 2)) == [4]
    finish_parts(Path(STORE), TEXTS)
    assert server.objects("store") == contents(tmp_path / "whole")
    assert not list((tmp_path / "here").rglob("making/*/*.arrow"))


def test_of_two_machines_with_one_shard_the_first_one_counts(server, tmp_path):
    """Its losses may differ in their last bits, and the manifest has one hash."""
    for text in ("first", "second"):
        (tmp_path / text).write_text(text)
        path = tmp_path / f"{text}.arrow"
        publish(tmp_path / text, path, Address(f"{STORE}/shard-00000.arrow"))
        assert path.read_text() == "first"
    assert server.objects("store") == {"shard-00000.arrow": b"first"}


@pytest.mark.parametrize("name", [STORE, "memory://texts/store"])
def test_the_manifest_names_what_the_bucket_has(name, request, tmp_path, monkeypatch):
    """Shards of the same size with other last bits that another machine has made are fetched, also
    from a file system without ETags."""
    if name == STORE:
        request.getfixturevalue("server")
    corpus = scan(write_corpus(tmp_path / "c.jsonl", ["document 0", "document 1"]), shard_bytes=1)
    store = Address(name)

    def on(machine, part, nll):
        monkeypatch.setenv("VOCAGNO_CACHE", str(tmp_path / machine))
        return make(corpus, store, part, nll=nll)

    def discard(*names):
        for name in names:
            (store / name).unlink(missing_ok=True)

    shards = "shard-00000.arrow", "shard-00001.arrow"  # the second one is missing at first
    on("a", Part(1, 2), 1.0)
    discard(*shards)
    on("b", Part(1, 1), 1.001)
    monkeypatch.setenv("VOCAGNO_CACHE", str(tmp_path / "a"))
    finish_parts(store, SCORES)
    assert [message for _, message in ScoreStore(store).damages()] == []
    discard("manifest.json", *shards)
    on("c", None, 1.0)
    discard("manifest.json", shards[1])
    on("d", Part(2, 2), 1.001)
    assert on("c", None, 1.0) == []
    assert [message for _, message in ScoreStore(store).damages()] == []
    discard(shards[1])
    if name != STORE:  # S3 does not say so
        with pytest.raises(FileNotFoundError):
            (store / shards[1]).unlink()


def test_what_is_in_the_way_of_a_new_object(server, monkeypatch):
    """MinIO's 412 lacks the `Condition` by which s3fs knows it. A 409 is tried again."""
    core = pytest.importorskip("s3fs.core")
    translated, codes = core.translate_boto_error, ["412", "PreconditionFailed", "409"]

    def answered(error):
        error.response["Error"] = {"Code": codes.pop(), "Message": ""}
        error.response["ResponseMetadata"] = {}
        return translated(error)

    monkeypatch.setattr(core, "translate_boto_error", answered)
    server.change("store/claim", b"first")
    for left in (1, 0):
        with pytest.raises(FileExistsError):
            Address(f"{STORE}/claim").put(b"second", is_new=True)
        assert len(codes) == left


def test_a_server_that_dies_loses_nothing(corpus, server, tmp_path):
    make(corpus, tmp_path / "whole")

    def die(number):
        if number == 2:
            server.lead_nowhere()

    with pytest.raises(AddressError, match=r"^s3://texts/store/shard-00002.arrow: Endpoint"):
        make(corpus, STORE, then=die)
    with pytest.raises(AddressError, match=r"/manifest.json: Endpoint.*; check network and endpoi"):
        TextStore(STORE)
    server.lead_nowhere(server.url)
    assert make(corpus, STORE) == [3, 4, 5, 6]
    assert server.objects("store") == contents(tmp_path / "whole")


def test_missing_rights_name_the_object_and_the_remedy(corpus, server, capsys):
    make(corpus, STORE)
    nobody, reader = server.user(), server.user("s3:ListBucket", "s3:GetObject")
    server.check_rights(on=True)
    server.become(reader)
    assert len(TextStore(STORE)) == 7
    words = "Access Denied; check that the credentials .* may list, read and write the bucket texts"
    with pytest.raises(AddressError, match=rf"^s3://texts/new/.locks/made-from.json: .*{words}$"):
        make(corpus, "s3://texts/new")
    server.become(nobody)
    with pytest.raises(AddressError, match=r"^s3://texts/store/manifest.json: .* read the bucket"):
        TextStore(STORE)
    server.check_rights(on=False)
    server.become(reader)
    with pytest.raises(AddressError, match="does not exist; make the bucket, or name another"):
        make(corpus, "s3://nothing/store")


def test_a_missing_package_for_s3_names_the_extra(monkeypatch):
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    with pytest.raises(AddressError, match=r"ImportError: .*; pip install '\.\[s3\]' in the"):
        TextStore(STORE)


def test_a_damaged_object_is_named_and_never_read(corpus, server, tmp_path):
    """A damaged copy in the cache is fetched again; a damaged object is named, and no wrong row is
    read."""
    make(corpus, STORE)
    before = server.objects("store")
    names = [f"shard-0000{number}.arrow" for number in (1, 3, 5)]
    flipped, cut, _ = (before[name] for name in names)
    flipped = flipped[:-9] + bytes([flipped[-9] ^ 1]) + flipped[-8:]
    for name, content in zip(names, (flipped, cut[:-9], None), strict=True):
        server.change(f"store/{name}", content)
    store = TextStore(STORE)
    assert store.piece(2, 0, 9)[0] == "document "
    faults = [message.partition(";")[0] for _, message in store.damages()]
    words = ["differs from its hash in the manifest"] * 2 + ["the shard is missing"]
    assert faults == [f"{STORE}/{name}: {fault}" for name, fault in zip(names, words, strict=True)]
    for number, fault in zip((1, 3, 5), faults, strict=True):
        with pytest.raises(StoreError, match=f"^{fault}; delete the shard"):
            store.piece(number, 0, 9)
    with pytest.raises(StoreError, match="with missing shards; run without --shards"):
        make(corpus, STORE, Part(1, 2))
    (store.folder / names[0]).unlink()
    shutil.rmtree(tmp_path / "here")  # another machine
    assert make(corpus, STORE) == [1, 3, 5]
    assert server.objects("store") == before
    TextStore(STORE).piece(1, 0, 9)
    (copy,) = (path for path in (tmp_path / "here" / "objects").iterdir() if path.is_file())
    for damaged in (lambda content: content[:-20], lambda content: content.replace(b"doc", b"dox")):
        copy.write_bytes(damaged(copy.read_bytes()))
        assert TextStore(STORE).piece(1, 0, 9)[0] == "document "
    server.change(f"store/{names[0]}", None)
    assert make(corpus, STORE) == []  # its copy is here
    assert server.objects("store") == before


def test_the_cache_is_bounded(corpus, server, tmp_path, monkeypatch):
    """Sees files beyond the bound, a file that was used last and is dropped first, and a shard that
    is lost while it is open."""
    make(corpus, STORE)
    size = len(server.objects("store")["shard-00000.arrow"])
    fetched, get = [], Address.get
    cache = tmp_path / "here" / "objects"

    def getting(self, file):
        get(self, file)
        fetched.append(self.stem[-1])
        assert sum(path.stat().st_size for path in cache.iterdir() if path.is_file()) <= 3.5 * size

    monkeypatch.setattr(Address, "get", getting)
    monkeypatch.setenv("VOCAGNO_CACHE_GB", str(3.5 * size / 1e9))
    for number in map(int, "01203"):
        assert TextStore(STORE).piece(number, 9, 10)[0] == str(number)
    assert "".join(fetched) == "0123"  # then 1 made room for 3
    for number in map(int, "02312"):
        TextStore(STORE).piece(number, 9, 10)
    assert "".join(fetched) == "01231"
    for name, age, share in (("torn", 4000, 2), ("new", 2000, 1)):
        partial = cache / f".{name}.arrow.0.tmp"
        partial.write_bytes(b"0" * share * size)
        os.utime(partial, (time.time() - age,) * 2)
    TextStore(STORE).piece(6, 9, 10)
    assert list(cache.glob("*.tmp")) == [partial]  # another process is writing it
    partial.unlink()
    store = TextStore(STORE)
    for number in (0, 1, 2, 3, 4, 5, 6, 0):  # while its last shards are open
        assert store.piece(number, 9, 10)[0] == str(number)
    monkeypatch.setenv("VOCAGNO_CACHE_GB", "0")
    with pytest.raises(ConfigError, match="VOCAGNO_CACHE_GB: expected gigabytes above 0, got 0"):
        TextStore(STORE)
