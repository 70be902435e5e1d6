"""Documents of the corpus with the guided student's and teacher's view of them, for the page."""

from dataclasses import replace

import torch

from vocagno.config.options import Config
from vocagno.data.corpus import scan
from vocagno.guidance.batches import Collator, line_ends
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.tokens.student_tokenizer import student_tokenizer
from vocagno.training.loop import final_folder
from vocagno.training.sample_pages import TOKENS, Sampler, choose_samples
from vocagno.training.student import GuidedStudent
from vocagno.views.passage import Passage


def passages(config: Config) -> list[Passage]:
    """The first few training documents with the trained student's view of them."""
    from transformers import AutoModelForCausalLM

    cpu = torch.device("cpu")
    corpus = scan(config.data.one_corpus, config.data.cache)
    teacher = ConfiguredTeacher(config.teacher, config.data.cache, cpu)
    scores, _ = teacher.cached_scores(corpus, show_progress=False)
    tokenizer = student_tokenizer(str(config.student.tokenizer), config.student.eos)
    model = AutoModelForCausalLM.from_pretrained(final_folder(config.output)).eval()
    data = replace(config.data, seq_len=TOKENS)
    ends = line_ends(tokenizer.spans, config.guidance)
    sampler = Sampler(
        choose_samples(corpus, tokenizer, TOKENS),
        tokenizer,
        teacher.spans,
        Collator(scores, config.guidance, data, ends),
    )
    return sampler.passages(GuidedStudent(model, config.guidance), cpu)
