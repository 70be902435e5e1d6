"""On-policy distillation from a teacher with other tokens, in slime and in verl.

slime calls the two functions; the environment names the tokenizers (files, folders or hub names):

    STUDENT_TOKENIZER=... TEACHER_TOKENIZER=... python train.py --use-opd --opd-type sglang \
        --custom-rm-path on_policy.reward_func --rm-url http://HOST:PORT/generate \
        --custom-reward-post-process-path on_policy.post_process_rewards ...

verl asks a manager for the teacher's log-probabilities; `AcrossTokenizers` stands between them.
"""

import os
from functools import cache

import numpy as np
import torch

import vocagno


@cache
def tokenizer(side: str) -> vocagno.TokenSpans:
    return vocagno.TokenSpans.from_pretrained(os.environ[f"{side}_TOKENIZER"])


@cache
def ordinary_pieces():
    """The bytes of the student's tokens but special ones, such as the end of its turn: the teacher
    has others, and would read their names letter by letter."""
    student = tokenizer("STUDENT")
    is_special = student.is_special(np.arange(student.vocabulary_size))
    return {i: piece for i, piece in enumerate(student.pieces()) if piece and not is_special[i]}


def text_of(response_ids):
    """What the teacher reads. A character that is cut becomes U+FFFD, which `credit` knows."""
    pieces = ordinary_pieces()
    return b"".join(pieces.get(index, b"") for index in response_ids).decode(errors="replace")


def prompt_of(student, prompt_ids):
    """The text of a prompt with the names of its special tokens, which a chat template writes and
    the teacher reads, too. Render another chat template where the teacher has one."""
    (text,), tokens = student.texts_and_tokens(prompt_ids)
    data, parts, end = text.encode(), [], 0
    is_special = student.is_special(prompt_ids)
    for place in np.flatnonzero(is_special):
        start = int(tokens.spans[place, 0])
        parts += [data[end:start].decode(errors="replace"), student.token(prompt_ids[place])]
        end = start
    return "".join([*parts, data[end:].decode(errors="replace")])


def with_bos(teacher, ids):
    """The ids with those that the teacher's tokenizer adds before a text, and their number. A
    prompt may bring them."""
    added = list(teacher.prefix_ids)
    ids = ids.tolist()
    return (ids, 0) if ids[: len(added)] == added else (added + ids, len(added))


def credited(response_ids, teacher_ids, teacher_logprobs, student_logprobs):
    """The teacher's log-probability of each token of a response; NaN where there is none."""
    return vocagno.credit(
        tokenizer("STUDENT"),
        response_ids,
        tokenizer("TEACHER"),
        teacher_ids,
        teacher_logprobs,
        student_logprobs=student_logprobs,
        strict=False,  # mask a response that cannot be compared, and keep the batch
    )


def sampled_ids(sample):
    return sample.tokens[len(sample.tokens) - sample.response_length :]


async def reward_func(args, sample, **_):
    """Asks SGLang for the log-probabilities of the same text in the teacher's tokens."""
    import aiohttp

    prompt = sample.prompt  # render another chat template here
    teacher = tokenizer("TEACHER")
    both = teacher.encode([prompt, text_of(sampled_ids(sample))])
    asked, num_added = with_bos(teacher, both.ids)
    request = {
        "input_ids": asked,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    async with aiohttp.ClientSession() as session, session.post(args.rm_url, json=request) as reply:
        reply.raise_for_status()
        logprobs = (await reply.json())["meta_info"]["input_token_logprobs"]
    return [(index, logprob) for logprob, index, *_ in logprobs[num_added + both.text(1).start :]]


def post_process_rewards(args, samples, **_):
    """Gives each sample its `teacher_log_probs`, and masks tokens that the teacher has not."""
    for sample in samples:
        scored = sample.get_reward_value(args)
        ids, logprobs = [index for index, _ in scored], [logprob for _, logprob in scored]
        credits = credited(sampled_ids(sample), ids, logprobs, sample.rollout_log_probs)
        is_known = np.isfinite(credits)
        sample.loss_mask = np.where(is_known, sample.loss_mask or [1] * len(credits), 0).tolist()
        sample.teacher_log_probs = torch.tensor(np.where(is_known, credits, 0.0)).float()
    return [0.0] * len(samples), [0.0] * len(samples)


class AcrossTokenizers:
    """A manager of verl's, asked in the teacher's tokens and answering in the student's.

    As verl has it, row p of an answer is for token p + 1, and the last row is empty.
    """

    def __init__(self, manager):
        self.manager = manager

    async def compute_teacher_logprobs(self, prompt_ids, response_ids, response_logprobs, **extra):
        """For `_compute_teacher_logprobs` of an agent loop, in the place of its own call."""
        student, teacher = tokenizer("STUDENT"), tokenizer("TEACHER")
        both = teacher.encode([prompt_of(student, prompt_ids), text_of(response_ids)])
        asked, num_added = with_bos(teacher, both.ids)
        _, logprobs_T1 = await self.manager.compute_teacher_logprobs_single(asked, **extra)
        first = num_added + both.text(1).start
        logprobs = logprobs_T1[first - 1 : -1, 0].numpy()  # what predicts the response
        ids = both.ids[both.text(1)]
        credits = credited(response_ids, ids, logprobs, response_logprobs)
        rows = torch.zeros(len(prompt_ids) + len(response_ids), 1)
        # The student's own where the teacher has none: no difference, so no gradient.
        filled = np.where(np.isnan(credits), response_logprobs, credits)
        rows[len(prompt_ids) - 1 : -1, 0] = torch.tensor(filled)
        sequence = torch.tensor([*prompt_ids[1:], *response_ids, 0], dtype=torch.int32)
        return sequence[:, None], rows
