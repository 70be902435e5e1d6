"""Questions from the hub: read by the library that reads it, here from folders laid out like it."""

import json

import pytest

pytest.importorskip("datasets")
pytest.importorskip("math_verify")

from evaluation_data import RECORDS
from vocagno.cli.app import main
from vocagno.evaluation import fetching
from vocagno.evaluation.benchmarks import BENCHMARKS, read_items
from vocagno.evaluation.fetching import Source


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Adds a data set of given files to the hub, as the source of a benchmark."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    sources = dict(fetching.SOURCES)
    monkeypatch.setattr(fetching, "SOURCES", sources)

    def add(name, files, splits=("test",)):
        folder = tmp_path / "hub" / name
        folder.mkdir(parents=True)
        configs = []
        for (configuration, split), records in files.items():
            file = f"{configuration}-{split}.jsonl"
            (folder / file).write_text("".join(json.dumps(one) + "\n" for one in records))
            files_of = [{"split": split, "path": file}]
            configs.append({"config_name": configuration, "data_files": files_of})
        (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
        sources[name] = Source(str(folder), splits, tuple(part for part, _ in files))

    return add


def run(data, *arguments):
    return main(["eval", "--fetch", "--data", str(data), *arguments])


def test_what_is_fetched_is_what_is_asked(tmp_path, hub, capsys):
    mmlu = RECORDS["mmlu_stem"][0]
    others = [{**mmlu, "question": f"What is {n}?"} for n in range(3)]
    hub("gsm8k", {("main", "test"): RECORDS["gsm8k"]})
    hub("mmlu_stem", {("astronomy", "test"): [mmlu], ("machine_learning", "test"): others})
    data = tmp_path / "data"
    assert run(data, "--tasks", "gsm8k", "mmlu_stem", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"gsm8k": 2, "mmlu_stem": 4}
    for name, records in (("gsm8k", RECORDS["gsm8k"]), ("mmlu_stem", [mmlu, *others])):
        benchmark = BENCHMARKS[name]
        asked = [benchmark.item(record, index) for index, record in enumerate(records)]
        assert read_items(benchmark, data) == asked


def test_numbers_in_text_are_numbers():
    record = RECORDS["svamp"][0]
    numeral = {**record, "Answer": "2.0"}
    assert BENCHMARKS["svamp"].item(numeral, 0) == BENCHMARKS["svamp"].item(record, 0)


def test_what_cannot_be_fetched(tmp_path, hub, capsys):
    data = tmp_path / "data"
    hub("gsm8k", {("main", "test"): RECORDS["gsm8k"] + [{"question": "?", "answer": "2"}]})
    assert run(data, "--tasks", "gsm8k") == 2
    assert (
        "item 3: not an item of gsm8k: ValueError('`answer` has no ####')"
        in capsys.readouterr().err
    )
    assert not (data / "gsm8k").exists()

    assert run(data, "--tasks", "asdiv") == 2
    assert "asdiv: not on the hub in the form" in capsys.readouterr().err
    assert run(data, "--tasks", "GSM9K") == 2
    assert "did you mean gsm8k" in capsys.readouterr().err
    assert main(["eval", "MODEL", "--fetch", "--data", str(data)]) == 2
    assert "--fetch goes with no model" in capsys.readouterr().err

    hub("svamp", {("main", "train"): RECORDS["svamp"]})  # has no test
    assert run(data, "--tasks", "svamp") == 2
    assert "svamp: cannot be fetched from the hub: " in capsys.readouterr().err

    (data / "svamp").mkdir(parents=True)
    (data / "svamp" / "test.jsonl.gz").write_bytes(b"mine")
    assert run(data, "--tasks", "svamp") == 2
    assert "test.jsonl.gz: already exists" in capsys.readouterr().err
    assert (data / "svamp" / "test.jsonl.gz").read_bytes() == b"mine"


def test_a_hub_that_is_not_reached(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(tmp_path, "--tasks", "minerva_math") == 2
    message = capsys.readouterr().err
    assert "HuggingFaceH4/MATH-500: cannot be fetched from the hub" in message
    assert "on a machine without a network, copy the file there" in message
