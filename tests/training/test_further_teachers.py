"""`teacher.also`: several stores of one text, by teachers of several vocabularies."""

import shutil
from dataclasses import replace

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import metrics, score_here, train_here
from vocagno.teacher.score_store import ScoreStore


@pytest.fixture(scope="module")
def stores(tmp_path_factory, teacher_model, same_vocabulary_model):
    """Two teachers' scores of the corpus, with 8 and 3 candidates, and some without."""
    folder = tmp_path_factory.mktemp("stores")
    corpus = write_corpus(folder / "c.jsonl", TEXTS)
    of = {"first": (teacher_model, 8), "second": (same_vocabulary_model, 3)}
    of["plain"] = (teacher_model, 0)
    for name, (model, count) in of.items():
        score_here(corpus, model, folder / name, "--candidates", count)
    made = {name: (str(folder / name), str(model)) for name, (model, _) in of.items()}
    shutil.copytree(folder / "second", folder / "moved")
    made["second, moved"] = str(folder / "moved"), made["second"][1]
    manifest = ScoreStore(shutil.copytree(folder / "second", folder / "unsure")).manifest
    replace(manifest, made_from=manifest.made_from | {"entropy": False}).save(folder / "unsure")
    made["second, unsure"] = str(folder / "unsure"), made["second"][1]
    return made | {"second, read as the first": (made["second"][0], made["first"][1])}


@pytest.fixture
def run(tmp_path, config, stores):
    """Trains `distill` on the stores of these names, each with a share; gives the losses."""
    first = {"scores": stores["first"][0], "tokenizer": stores["first"][1], "model": None}

    def train(output, also, **guidance):
        teacher = first | {
            "also": [
                {"scores": stores[name][0], "tokenizer": stores[name][1], "share": share}
                for name, share in also
            ]
        }
        method = {"method": "distill", "distill_where": "all", "top_fraction": None, **guidance}
        path = config(teacher=teacher, guidance=method)
        code = train_here(path, "--output", str(tmp_path / output))
        return code or [entry["loss"] for entry in metrics(tmp_path / output)[0]]

    return train


@pytest.mark.slow
def test_another_mean_of_teachers_is_another_run(run, stores, tmp_path, capsys):
    alone = run("alone", [])
    assert run("twice", [("first", 3.0)]) == pytest.approx(alone, abs=1e-6)
    both = run("both", [("second", 1.0)])
    assert both != pytest.approx(alone, abs=1e-5)
    card = (tmp_path / "both" / "final" / "README.md").read_text()
    assert f"| teacher | `{stores['first'][0]}`, `{stores['second'][0]}` |" in card
    assert run("both", [("second", 2.0)]) == 2  # another mean is another run
    assert "teacher.also is" in capsys.readouterr().err
    assert run("both", [("second, moved", 1.0)]) == both  # resumed: the same scores elsewhere
    assert run("both", [("first", 1.0)]) == 2
    assert "teacher.also is" in capsys.readouterr().err  # another tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("also", "options", "message"),
    [
        ([("plain", 1.0)], {}, "have 0 candidates a token"),
        ([("second, read as the first", 1.0)], {}, "another tokenizer"),
        ([("second, unsure", 1.0)], {"distill_where": "surer"}, "surer compares the entropy"),
        ([("second", 0.0)], {}, "teacher.also.share: must be above 0, got 0.0"),
        ([("second", 1.0)], {"method": "alm", "distill_where": "surer"}, "teacher.also: is for"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(run, capsys, also, options, message):
    assert run("refused", also, **options) == 2
    assert message in capsys.readouterr().err
