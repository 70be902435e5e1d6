"""The README of a trained model: what made it, so that it can be made again."""

import json
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from vocagno import __version__
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.methods import method_of


def model_card(output: Path) -> str:
    """A page in Markdown with the metadata of the Hugging Face hub on top.

    Args:
        output: folder of the run. Read are the resolved configuration, the hashes of texts,
            tokenizers and teacher in `materials.json`, and the last losses in `metrics.jsonl`.
    """
    resolved = (output / "config.yaml").read_text("utf-8")
    materials = json.loads((output / "materials.json").read_bytes())
    last: dict[str, Any] = {}
    for line in (output / "metrics.jsonl").read_bytes().splitlines():
        last |= json.loads(line)
    options = yaml.safe_load(resolved)
    data, train = options["data"], options["train"]
    student, teacher = options["student"]["model"], options["teacher"]["model"]
    guidance = GuidanceConfig(**options["guidance"])
    method = method_of(guidance)
    # A hub takes only names of its models.
    base = None if student is None or Path(student).exists() else student
    metadata = ModelCardData(library_name="transformers", base_model=base, tags=method.tags)
    facts = {
        "method": f"`{guidance.method}`",
        "student": "new" if student is None else f"`{student}`",
        "teacher": f"`{teacher}`" if guidance.needs_teacher else "none",
        "trained on": _corpora(data["train"]),
        "steps": f"{train['steps']:,} of {train['global_batch']} rows of "
        f"{data['seq_len']:,} tokens",
        **{name: f"{last[key]:.4f}" for key, name in _MEASURED.items() if key in last},
    }
    body = _CARD.format(
        version=__version__,
        summary=method.summary,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        hashes=json.dumps(materials, indent=1),
        resolved=resolved.strip(),
    )
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}"))


def _corpora(given: str | dict[str, float]) -> str:
    if isinstance(given, str):
        return f"`{given}`"
    return ", ".join(f"`{name}` ({weight:g})" for name, weight in given.items())


_MEASURED = {"loss": "loss, the last window", "validation_loss": "held-out loss"}
"""Names of values in `metrics.jsonl`, in nats a token."""

_CARD = """# Trained by vocagno {version}

{summary}

| | |
|---|---|
{facts}

Add the intended use, and the licences of the texts and the teacher.

## Inputs

Hashes of the texts, the tokenizers and the teacher's weights:

```json
{hashes}
```

## Configuration

```yaml
{resolved}
```

Method: VocAgnoLM, ICML 2025, [arXiv 2503.19123](https://arxiv.org/abs/2503.19123).
"""
