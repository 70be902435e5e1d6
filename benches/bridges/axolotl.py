"""axolotl's `do_train` with the plugin of `examples/guided_axolotl.py`, next to a plain loop.

DO_NOT_TRACK=1 PYTHONPATH=benches:examples python -m bridges.axolotl MATERIAL

Without DO_NOT_TRACK axolotl tells its makers what it runs. The trainer shuffles its rows: the loop
takes the batches that the collator has made.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
from guided_axolotl import GuidedPlugin, collator
from torch import Tensor
from transformers import AutoTokenizer

from bridges.comparison import LENGTH, ROWS, Run, report
from bridges.trainers import OPTIONS, Recording, of_batches, of_trainer, permute, tiny_model


def recording(tokenizer: Any, **options: Any) -> Recording:
    return Recording(collator(tokenizer, **options))


class Watched(GuidedPlugin):
    """Keeps the trainer; axolotl has one plugin of a name for all its runs."""

    is_permuted = False
    trainer: Any

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        made = super().load_datasets(cfg, preprocess)
        if not Watched.is_permuted:
            return made
        return replace(made, train_dataset=permute(made.train_dataset))

    def get_collator_cls_and_kwargs(self, cfg: Any, is_eval: bool = False) -> Any:
        return recording, {}

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        Watched.trainer = trainer


def train(material: Path, start: Path, is_permuted: bool) -> tuple[Run, list[dict[str, Tensor]]]:
    Watched.is_permuted = is_permuted
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "base_model": str(start),
            "datasets": [{"path": str(material / "corpus.jsonl"), "type": "completion"}],
            "plugins": [f"{Watched.__module__}.Watched"],
            "teacher_scores": str(material / "scores"),
            "sequence_len": LENGTH,
            "output_dir": folder,
            "micro_batch_size": ROWS,
            "gradient_accumulation_steps": 1,
            "lr_scheduler": "constant",
            "optimizer": "adamw_torch",
            "dataloader_num_workers": 0,  # or other processes would keep the batches
            "fp16": False,
            "tf32": False,
            **OPTIONS,
        }
        settings = Path(folder) / "guided.yml"
        settings.write_text(yaml.safe_dump(options), encoding="utf-8")
        do_train(load_cfg(str(settings)), TrainerCliArgs())
    trainer = Watched.trainer
    return of_trainer(trainer), trainer.data_collator.batches


def main() -> None:
    material = Path(sys.argv[1]).absolute()
    model = tiny_model()
    with tempfile.TemporaryDirectory() as start:
        model.save_pretrained(start)
        AutoTokenizer.from_pretrained(material / "student").save_pretrained(start)
        bridge, batches = train(material, Path(start), False)
        control, _ = train(material, Path(start), True)

    report(
        "axolotl",
        bridge,
        of_batches(model, batches),
        control[0],
        compared="`do_train` with the plugin of the example, columns; the logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
