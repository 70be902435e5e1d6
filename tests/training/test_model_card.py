"""The page beside a trained model says what made it."""

import json

import pytest
import yaml

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from folders import contents
from hub_server import serving, uses_hub
from runs import train_here, write_config


@pytest.mark.parametrize("method", ["vocagno", "cpt"])
def test_what_a_model_was_made_of_is_beside_it(tmp_path, tokenizer_files, teacher_model, method):
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    output = tmp_path / "run"
    path = write_config(
        tmp_path,
        corpus,
        tokenizer_files,
        teacher_model,
        output=str(output),
        guidance={"method": method},
    )
    assert train_here(path) == 0
    card = (output / "final" / "README.md").read_text("utf-8")
    _, metadata, body = card.split("---\n", 2)
    metadata = yaml.safe_load(metadata)
    assert metadata["library_name"] == "transformers"
    assert ("vocagno" in metadata["tags"], "base_model" in metadata) == (True, False)
    materials = json.loads((output / "materials.json").read_text())
    for part in materials.values():
        assert all(text in body for text in part["text"])
    assert ("scores" in materials) is (method != "cpt")
    assert (output / "config.yaml").read_text().strip() in body
    assert (f"`{teacher_model}`" in body) is (method != "cpt")
    losses = [json.loads(line).get("loss") for line in (output / "metrics.jsonl").open()]
    last = [loss for loss in losses if loss is not None][-1]
    assert f"| loss, the last window | {last:.4f} |" in body


def test_a_run_is_pushed_when_it_is_complete(config, tmp_path, monkeypatch, capsys):
    path, final = config(), tmp_path / "run" / "final"
    push = [path, "--push_to_hub", "student"]
    with serving() as hub:
        uses_hub(monkeypatch, hub)
        hub.statuses = {"create": 403}
        assert train_here(*push) == 2
        assert "the token may not write there" in capsys.readouterr().err
        assert not final.exists()
        # The hub fails before the run, and after it: the model is kept.
        hub.statuses = {"create": 503}
        assert train_here(*push) == 2
        said = capsys.readouterr().err
        assert "trying again after the last step" in said
        assert f"complete: {final}" in said
        assert f"To push them again: hf upload student {final} . --private" in said
        # The same command pushes the finished run.
        hub.statuses = {}
        assert train_here(*push) == 0
        said = capsys.readouterr().err
        assert f"already complete: {final}" in said
        assert f"pushed: {hub.url}/tester/student/commit/" in said
        assert hub.private == {"models/tester/student": True}
        assert hub.files["models/tester/student"] == contents(final)
        assert "README.md" in contents(final)
