"""The recipes: every file is a configuration, is listed, and its commands run with tiny models that
lie in folders of the named models."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import environment
from tiny_models import tiny_llama
from warm_python import executable

pytest.importorskip("accelerate", reason="training needs vocagno[train]")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "recipes"
RECIPES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".yaml", ".sh"))
YAML = [name for name in RECIPES if name.endswith(".yaml")]
# By name on the hub: the family of a stand-in's tokenizer.
MODELS = {
    "HuggingFaceTB/SmolLM2-135M": "llama",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "llama",
    "HuggingFaceTB/SmolLM2-360M": "llama",
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": "llama",
    "Qwen/Qwen2.5-0.5B": "byte-level",
    "Qwen/Qwen2.5-0.5B-Instruct": "byte-level",
    "Qwen/Qwen2.5-Math-1.5B": "byte-level",
    "Qwen/Qwen2.5-Math-7B": "byte-level",
}
# By name: configuration, split, columns next to the text.
DATASETS = {
    "HuggingFaceTB/finemath": ("finemath-4plus", "train"),
    "HuggingFaceTB/everyday-conversations-llama3.1-2k": ("default", "train_sft"),
    "open-web-math/open-web-math": ("default", "train"),
}
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
# Smaller amounts than a recipe's; its dry runs keep its own. `filter` has another limit, since all
# text is noise to a tiny teacher.
SMALLER = "--data.seq_len 64 --train.steps 2 --train.global_batch 4 --train.micro_batch 2"
SMALLER += " --train.eval_every 2 --train.log_every 1 --optimizer.warmup_steps 1"
SHIMS = {
    "accelerate": 'shift 3\nexec python "$@"',  # launch --config_file FILE
    "hf": 'mkdir -p "$(dirname "$4")"\ncp -r "$2" "$4"',  # download NAME --local-dir FOLDER
    "vocagno": 'exec python -m vocagno "$@"',
    "python": f"""case "$*" in
  *take.py*) set -- "$@" --megabytes 0.03 ;;
  *--dry_run*) ;;
  "-m vocagno filter"*) set -- "$@" --window_max_loss 20 ;;
  *train.py*|"-m vocagno train"*) set -- "$@" {SMALLER} ;;
esac
exec "$PYTHON" "$@\"""",
}


def commands(name):
    """The commands of a recipe: the indented lines of its first comment, or the script."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    if name.endswith(".sh"):
        return text
    return "\n".join(re.findall(r"^#   (.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", YAML)
def test_a_recipe_is_a_configuration_of_named_models(name):
    from vocagno.training.configuration import parse

    config = parse(["--config", str(FOLDER / name)])
    text = (FOLDER / name).read_text(encoding="utf-8")
    models = {model for model in MODELS if model in text}
    assert config.teacher.model in models
    assert config.student.model in models or config.student.model in commands(name)
    corpora = [str(config.data.train), str(config.data.validation)]
    assert all(corpus.startswith("datasets:") or "--megabytes" in text for corpus in corpora)
    assert any(dataset in text for dataset in DATASETS)
    assert f"--config configs/recipes/{name}" in commands(name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_says_what_was_run_and_is_listed(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) <= 30
    assert "# Not run as it stands" in text
    assert f"]({name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def stand_ins(tmp_path, tokenizers):
    """A folder from which the named models and data sets are found: tiny ones, as folders."""
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    from transformers import PreTrainedTokenizerFast

    for name, family in MODELS.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizers[family],
            eos_token="</s>" if family == "llama" else "<|endoftext|>",
            chat_template=TEMPLATE,
        )
        tokenizer.save_pretrained(tmp_path / name)
        tiny_llama(len(tokenizer), max_position_embeddings=2048).save_pretrained(tmp_path / name)
    for name, (config, split) in DATASETS.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        files = f"{{split: {split}, path: data.jsonl}}"
        card = f"---\nconfigs:\n- {{config_name: {config}, data_files: [{files}]}}\n---\n"
        (folder / "README.md").write_text(card)
        write_corpus(folder / "data.jsonl", TEXTS * 60)
        if split == "train_sft":
            (folder / "data.jsonl").write_text(
                "".join(
                    json.dumps({"messages": [{"role": "user", "content": "?"}, answer]}) + "\n"
                    for text in TEXTS * 60
                    if (answer := {"role": "assistant", "content": text})
                )
            )
    for name in ("configs", "examples", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    for name, script in SHIMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\nset -e\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run_commands(folder, script):
    """Runs commands in a folder of stand-ins, without the hub; what they print."""
    paths = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    variables = {"PATH": paths, "PYTHON": executable(), "HF_HOME": str(folder / "home")}
    result = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_of_a_recipe_run(stand_ins, name):
    if name == "sft.sh":
        pytest.importorskip("trl")
    run_commands(stand_ins, commands(name))
    finals = [*stand_ins.glob("runs/**/model.safetensors")]
    assert finals, "no model was trained"
    if name == "filter.sh":
        assert (stand_ins / "runs/filter/clean/report.html").is_file()
    if name == "laptop.yaml":
        assert (stand_ins / "runs/laptop/report.html").is_file()


TAKE = "python configs/recipes/take.py"


@pytest.mark.slow
def test_what_is_taken_is_the_first_documents(stand_ins):
    run_commands(stand_ins, f"{TAKE} HuggingFaceTB/finemath finemath-4plus out --megabytes 1")
    held_out, train = (
        [json.loads(line) for line in (stand_ins / "out" / f"{part}.jsonl").open(encoding="utf-8")]
        for part in ("valid", "train")
    )
    taken = [record["text"] for record in held_out + train]
    assert taken == (TEXTS * 60)[: len(taken)]
    assert 0 < len(held_out) < len(train)
