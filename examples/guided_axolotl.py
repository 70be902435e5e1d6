"""Guides axolotl (tried with 0.21): `axolotl train` in the folder of this file, with this YAML:

datasets: [{path: corpus.jsonl, type: completion}]  # or conversations; the type is not read
plugins: [guided_axolotl.GuidedPlugin]
teacher_scores: scores  # of `vocagno score`
"""

from pathlib import Path

from axolotl.common.datasets import TrainDatasetMeta
from axolotl.core.trainers import AxolotlTrainer
from axolotl.integrations.base import BasePlugin
from axolotl.loaders import load_tokenizer
from datasets import Dataset
from pydantic import BaseModel

from vocagno import guidance as guided
from vocagno.teacher import ScoreStore

GUIDANCE = guided.GuidanceConfig()


class Arguments(BaseModel):
    teacher_scores: str


class GuidedAxolotlTrainer(guided.GuidedTrainer, AxolotlTrainer):
    reports_token_perplexity = False  # the loss is not that of all tokens

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, guidance=GUIDANCE, **options)


def collator(tokenizer, pad_to_multiple_of=None, **_):
    return guided.DataCollatorWithTeacherLoss(GUIDANCE, pad_to_multiple_of=pad_to_multiple_of)


class GuidedPlugin(BasePlugin):
    def get_input_args(self):
        return f"{__name__}.Arguments"

    def load_datasets(self, cfg, preprocess=False):
        if cfg.sample_packing or cfg.val_set_size or cfg.test_datasets:
            raise ValueError("sample_packing, val_set_size and test_datasets are not supported")
        texts = Dataset.from_json([dataset.path for dataset in cfg.datasets])
        scores, length = ScoreStore(Path(cfg.teacher_scores)), cfg.sequence_len
        columns = guided.add_teacher_loss(
            texts, load_tokenizer(cfg), scores, GUIDANCE, max_length=length
        )
        return TrainDatasetMeta(columns)

    def get_trainer_cls(self, cfg):
        return GuidedAxolotlTrainer

    def get_collator_cls_and_kwargs(self, cfg, is_eval=False):
        return collator, {}
