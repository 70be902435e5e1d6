"""The README of a trained model: what made it, so that it can be made again."""

import json
from pathlib import Path
from typing import Any

import yaml

from vocagno import __version__
from vocagno.config.run import Config

_METHODS = {
    "cpt": "Trained on every token, without a teacher.",
    "vocagno": "Trained on the tokens whose loss is furthest above the teacher's, aligned by text.",
    "rho1": "Trained on the tokens whose loss is furthest above a reference model's (Rho-1).",
    "chunk": "Trained on the chunks whose loss is furthest above the teacher's.",
    "kld": "Trained on every token, and towards the teacher's distribution by KL divergence.",
    "uld": "Trained on every token, and towards the teacher's sorted distribution (ULD).",
}


def model_card(config: Config) -> str:
    """A page in Markdown with the metadata of the Hugging Face hub on top.

    What the run's folder says of it: the resolved configuration, the hashes of texts, tokenizers
    and teacher in `materials.json`, the last losses in `metrics.jsonl`.
    """
    resolved = (config.output / "config.yaml").read_text("utf-8")
    materials = json.loads((config.output / "materials.json").read_bytes())
    last: dict[str, Any] = {}
    for line in (config.output / "metrics.jsonl").read_bytes().splitlines():
        last |= json.loads(line)
    student, teacher = config.student.model, config.teacher.model
    guided = config.guidance.method != "cpt"
    metadata: dict[str, Any] = {"library_name": "transformers", "tags": ["vocagno"]}
    if guided and config.guidance.method != "vocagno":
        metadata["tags"].append(config.guidance.method)
    if student is not None and not Path(student).exists():  # a hub takes names of its models alone
        metadata["base_model"] = student
    facts = {
        "method": f"`{config.guidance.method}`",
        "student": "new" if student is None else f"`{student}`",
        "teacher": f"`{teacher}`" if guided else "none",
        "trained on": f"`{config.data.train}`",
        "steps": f"{config.train.steps:,} of {config.train.global_batch} rows of "
        f"{config.data.seq_len:,} tokens",
        **{name: f"{last[key]:.4f}" for key, name in _MEASURED.items() if key in last},
    }
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join([
        "---", yaml.safe_dump(metadata, sort_keys=False).strip(), "---", "",
        f"# Trained by vocagno {__version__}", "", _METHODS[config.guidance.method], "",
        "| | |", "|---|---|", *lines, "",
        "What it is for, and the licences of its texts and its teacher, are for you to add.", "",
        "## What it is made of", "",
        "Hashes of the texts, the tokenizers and the teacher's weights:", "",
        "```json", json.dumps(materials, indent=1), "```", "",
        "## Configuration", "", "```yaml", resolved.strip(), "```", "",
        "Method: VocAgnoLM, ICML 2025, [arXiv 2503.19123](https://arxiv.org/abs/2503.19123).", "",
    ])  # fmt: skip


_MEASURED = {"loss": "loss, the last window", "validation_loss": "held-out loss"}
"""Names of values in `metrics.jsonl`, in nats a token."""
