"""`examples/on_policy.py` as slime and verl call it, with stand-ins for their parts."""

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from families import TEXTS
from score_server import log_probability, serving
from vocagno import TokenSpans

EXAMPLE = Path(__file__).parents[2] / "examples" / "on_policy.py"
PROMPT, RESPONSE = TEXTS[0], TEXTS[1]


@pytest.fixture
def example(monkeypatch, tokenizer_files):
    monkeypatch.setenv("STUDENT_TOKENIZER", str(tokenizer_files / "student.json"))
    monkeypatch.setenv("TEACHER_TOKENIZER", str(tokenizer_files / "teacher.json"))
    spec = importlib.util.spec_from_file_location("on_policy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sides(tokenizer_files):
    return [TokenSpans(tokenizer_files / f"{side}.json") for side in ("student", "teacher")]


def of_teacher(teacher):
    """What the teacher gives the response after the prompt: ids and log-probabilities."""
    both = teacher.encode([PROMPT, RESPONSE])
    ids, first = both.ids.tolist(), both.text(1).start
    return ids, first, [log_probability(ids, place) for place in range(first, len(ids))]


def test_slime_gets_a_log_probability_for_each_sampled_token(example, sides):
    pytest.importorskip("aiohttp")
    student, teacher = sides
    prompt, response = (student.encode([text]).ids.tolist() for text in (PROMPT, RESPONSE))
    end = student.token_id("</s>")
    sample = SimpleNamespace(
        prompt=PROMPT,
        response=RESPONSE,
        tokens=[*prompt, *response, end],
        response_length=len(response) + 1,
        rollout_log_probs=(-np.random.default_rng(0).exponential(1, len(response) + 1)).tolist(),
        loss_mask=None,
    )
    with serving() as (url, state):
        args = SimpleNamespace(rm_url=f"{url}/generate")
        reward = asyncio.run(example.reward_func(args, sample))
    sample.get_reward_value = lambda args: reward
    assert example.post_process_rewards(args, [sample]) == ([0.0], [0.0])
    ids, first, logprobs = of_teacher(teacher)
    assert state.asked[-1][1]["input_ids"] == ids
    assert [index for index, _ in reward] == ids[first:]
    assert sample.teacher_log_probs.shape == (sample.response_length,)
    assert sample.teacher_log_probs.sum() == pytest.approx(sum(logprobs), rel=1e-5)
    assert sample.loss_mask == [1] * len(response) + [0]  # the teacher's text has no end


class Manager:
    """Answers as verl's `AsyncTeacherLLMServerManager`: row p is for token p + 1."""

    async def compute_teacher_logprobs_single(self, sequence_ids, routing_key=None):
        self.asked, self.routing_key = sequence_ids, routing_key
        places = range(1, len(sequence_ids))
        rows = [*(log_probability(sequence_ids, place) for place in places), 0.0]
        ids = torch.tensor([*sequence_ids[1:], 0], dtype=torch.int32)
        return ids[:, None], torch.tensor(rows)[:, None]


def test_verl_gets_rows_of_the_students_sequence(example, sides):
    student, teacher = sides
    both = student.encode([PROMPT + RESPONSE])  # the response is without a dummy prefix
    first = both.spans[:, 0].tolist().index(len(PROMPT.encode()))
    prompt, response = both.ids[:first].tolist(), both.ids[first:].tolist()
    assert student.has_dummy_prefix
    assert student.decode(response, continues=True) == [RESPONSE]
    response.append(student.token_id("</s>"))
    own, manager = -np.random.default_rng(1).exponential(1, len(response)), Manager()
    found = asyncio.run(
        example.AcrossTokenizers(manager).compute_teacher_logprobs(
            prompt, response, own, routing_key="math"
        )
    )
    ids, _, logprobs = of_teacher(teacher)
    assert (manager.asked, manager.routing_key) == (ids, "math")
    sequence, rows = found
    assert sequence[:, 0].tolist() == [*prompt[1:], *response, 0]
    assert rows.shape == (len(prompt) + len(response), 1)
    of_response = rows[len(prompt) - 1 : -1, 0]
    assert of_response[:-1].sum() == pytest.approx(sum(logprobs), rel=1e-5)
    assert of_response[-1] == pytest.approx(own[-1])  # no counterpart: no difference
    assert not rows[: len(prompt) - 1].any()
    assert rows[-1] == 0
