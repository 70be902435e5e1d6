"""What a study makes before its runs: tokenizers and corpora, and what they were made from."""

import json

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from research.study.assets import make_assets
from research.study.plan import read_plan
from vocagno.errors import ConfigError, InputError
from vocagno.quickstart import students

pytestmark = pytest.mark.slow


@pytest.fixture
def noisy(tmp_path, plan_file, monkeypatch):
    """Makes the corpora of a plan, without the quickstart's own inputs; the folder of a quarter."""
    monkeypatch.setattr(students, "make_assets", lambda: None)

    def make(documents, noise=0.25):
        plan = plan_file(assets="quickstart", noise=[noise], documents=documents)
        make_assets(read_plan(plan), "", tmp_path)
        return tmp_path / "noise-25"

    return make


def test_a_corpus_with_noise_is_made_once(noisy):
    train = noisy(20) / "train.jsonl"
    text = train.read_text()
    assert len(text.splitlines()) == 20
    when = train.stat().st_mtime_ns
    noisy(20)
    assert train.stat().st_mtime_ns == when
    with pytest.raises(
        ConfigError, match="noise-25 was made with documents 20, but the plan has 3"
    ):
        noisy(30)
    with pytest.raises(ConfigError, match=r"made with noise 0.25, but the plan has 0.2500001; cho"):
        noisy(20, noise=0.2500001)
    assert train.read_text() == text
    (train.parent / "made-from.json").write_text("{")
    with pytest.raises(InputError, match=r"made-from\.json: damaged"):
        noisy(20)


def test_tokenizers_are_learned_once_and_from_their_texts(tmp_path, plan_file):
    text = write_corpus(tmp_path / "c.jsonl", TEXTS)
    other = write_corpus(tmp_path / "other.jsonl", ["some other letters"] * 9 + TEXTS)
    tokenizers = {"small": {"vocabulary": 380}, "large": {"vocabulary": 420, "text": str(other)}}
    plan = read_plan(plan_file(tokenizers=tokenizers))
    make_assets(plan, str(text), tmp_path)
    made = [tmp_path / name for name in ("small", "large")]
    files = {file: file.stat().st_mtime_ns for folder in made for file in folder.iterdir()}
    vocabularies = [json.loads((f / "tokenizer.json").read_text())["model"]["vocab"] for f in made]
    assert list(map(len, vocabularies)) == [380, 420]
    assert "▁letters" in vocabularies[1]  # a word of the other text alone
    assert "▁letters" not in vocabularies[0]
    make_assets(plan, str(text), tmp_path)
    assert files == {file: file.stat().st_mtime_ns for file in files}
    write_corpus(text, TEXTS[:2])
    with pytest.raises(ConfigError, match=r"tokenizers: small: .* was learned from another text"):
        make_assets(plan, str(text), tmp_path)
    other.unlink()
    with pytest.raises(InputError, match=r"tokenizers: large: .*other\.jsonl: no such file"):
        make_assets(read_plan(plan_file(tokenizers={"large": tokenizers["large"]})), "", tmp_path)
