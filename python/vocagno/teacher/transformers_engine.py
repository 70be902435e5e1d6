"""The engine of a teacher that is a model of transformers in this process."""

import torch

from vocagno.config.teacher import TeacherConfig
from vocagno.models.loading import check_context, check_vocabulary, load_teacher
from vocagno.teacher.configured import Engine
from vocagno.teacher.scorer import TransformersScorer
from vocagno.tokens.token_spans import TokenSpans


class TransformersEngine(Engine):
    """A model of transformers in this process."""

    gives_entropy = True

    def check(self) -> None:
        """Raises: ConfigError if the model reads fewer than `teacher.context` tokens."""
        check_context(self.teacher.config)

    def load(self) -> TransformersScorer:
        return load_scorer(self.teacher.config, self.teacher.spans, self.teacher.device)


def load_scorer(
    config: TeacherConfig, spans: TokenSpans, device: torch.device
) -> TransformersScorer:
    """Loads the configured model of transformers as a scorer.
    Raises: ConfigError if the tokenizer has more ids than the model."""
    model = load_teacher(config, device)
    check_vocabulary(model, spans.vocabulary_size, "teacher.")
    return TransformersScorer(
        model,
        batch_tokens=config.batch_tokens,
        width=config.context,
        batching=config.batching,
        candidates=config.candidates,
        sampled=bool(config.sampled),
        num_ids=spans.vocabulary_size,
    )
