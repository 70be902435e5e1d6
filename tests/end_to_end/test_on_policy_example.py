"""`examples/on_policy.py` as slime and verl call it, with stand-ins for their parts."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokenizers.processors import TemplateProcessing

from examples import load_example
from families import TEXTS
from score_server import log_probability, serving
from vocagno import TokenSpans

PROMPT, RESPONSE = TEXTS[0], TEXTS[1]


@pytest.fixture
def example(monkeypatch, tokenizer_files):
    monkeypatch.setenv("STUDENT_TOKENIZER", str(tokenizer_files / "student.json"))
    monkeypatch.setenv("TEACHER_TOKENIZER", str(tokenizer_files / "teacher.json"))
    return load_example("on_policy")


@pytest.fixture
def sides(tokenizer_files):
    return [TokenSpans(tokenizer_files / f"{side}.json") for side in ("student", "teacher")]


def of_teacher(teacher, response=RESPONSE):
    """The ids that the teacher reads, and the sum of its log-probabilities over `RESPONSE`."""
    both = teacher.encode([PROMPT, response])
    ids, first = both.ids.tolist(), both.text(1).start
    count = np.count_nonzero(both.spans[first:, 1] <= len(RESPONSE.encode()))
    places = range(first, first + count)
    return ids, sum(log_probability(ids, place) for place in places)


@pytest.fixture(params=["end", "cut", "cut and end"])
def sampled(request, sides):
    """The ids of the prompt and of the response, how many of these are not in its text, and what
    the teacher reads of it."""
    student = sides[0]
    both = student.encode([PROMPT + RESPONSE])  # the response is without a dummy prefix
    first = both.spans[:, 0].tolist().index(len(PROMPT.encode()))
    prompt, response = both.ids[:first].tolist(), both.ids[first:].tolist()
    assert student.has_dummy_prefix
    assert student.decode(response, continues=True) == [RESPONSE]
    pieces = ["<0xF0>", "<0x9F>"] * ("cut" in request.param) + ["</s>"] * ("end" in request.param)
    response += map(student.token_id, pieces)
    return prompt, response, len(pieces), RESPONSE + "\ufffd" * ("cut" in request.param)


def scored(example, samples):
    """Samples as slime leaves them: a teacher's server is asked about each, then all together."""
    with serving() as (url, state):
        args = SimpleNamespace(rm_url=f"{url}/generate")
        for sample in samples:
            reward = asyncio.run(example.reward_func(args, sample))
            sample.get_reward_value = lambda args, reward=reward: reward
        none = [0.0] * len(samples)
        assert example.post_process_rewards(args, samples) == (none, none)
    return [request["input_ids"] for _, request in state.asked]


def sample_of(prompt, response, shown):
    logprobs = -np.random.default_rng(0).exponential(1, len(response))
    return SimpleNamespace(
        prompt=PROMPT,
        response=shown,  # as the student's tokenizer decodes it, special tokens included
        tokens=[*prompt, *response],
        response_length=len(response),
        rollout_log_probs=logprobs.tolist(),
        loss_mask=None,
    )


def test_slime_gets_a_log_probability_for_each_sampled_token(example, sides, sampled):
    pytest.importorskip("aiohttp")
    prompt, response, num_more, read = sampled
    end = sides[0].token_id("</s>")
    samples = [sample_of(prompt, response, f"{read}</s>"), sample_of(prompt, [end], "</s>")]
    asked = scored(example, samples)
    ids, total = of_teacher(sides[1], read)
    assert asked == [ids, of_teacher(sides[1], "")[0]]
    credits, mask = samples[0].teacher_log_probs, samples[0].loss_mask
    assert credits.shape == (len(response),)
    assert credits.sum() == pytest.approx(total, rel=1e-5)
    assert mask == [1] * (len(response) - num_more) + [0] * num_more
    assert samples[1].loss_mask == [0]  # nothing but an end, which the teacher's text has not


class Manager:
    """Answers as verl's `AsyncTeacherLLMServerManager`: row p is for token p + 1."""

    async def compute_teacher_logprobs_single(self, sequence_ids, routing_key=None):
        self.asked, self.routing_key = sequence_ids, routing_key
        places = range(1, len(sequence_ids))
        rows = [*(log_probability(sequence_ids, place) for place in places), 0.0]
        ids = torch.tensor([*sequence_ids[1:], 0], dtype=torch.int32)
        return ids[:, None], torch.tensor(rows)[:, None]


def test_verl_gets_rows_of_the_students_sequence(example, sides, sampled):
    prompt, response, num_more, read = sampled
    logprobs, manager = -np.random.default_rng(1).exponential(1, len(response)), Manager()
    sequence, rows = asyncio.run(
        example.AcrossTokenizers(manager).compute_teacher_logprobs(
            prompt, response, logprobs, routing_key="math"
        )
    )
    ids, total = of_teacher(sides[1], read)
    assert (manager.asked, manager.routing_key) == (ids, "math")
    assert sequence[:, 0].tolist() == [*prompt[1:], *response, 0]
    assert rows.shape == (len(prompt) + len(response), 1)
    of_response = rows[len(prompt) - 1 : -1, 0]
    assert of_response[:-num_more].sum() == pytest.approx(total, rel=1e-5)
    # No counterpart: no difference.
    np.testing.assert_allclose(of_response[-num_more:], logprobs[-num_more:], rtol=1e-6)
    assert not rows[: len(prompt) - 1].any()
    assert rows[-1] == 0


def test_the_teacher_reads_the_markers_of_a_chat(monkeypatch, tmp_path, tokenizers):
    """And before them its own BOS, once."""
    names, prompt = ("<|im_start|>", "<|im_end|>"), "<|im_start|>user\n12 + 7?<|im_end|>\n"
    for side in ("student", "teacher"):
        made = type(tokenizers["llama"]).from_str(tokenizers["byte-level"].to_str())
        made.add_special_tokens([f"<{side}>", *names])
        if side == "teacher":
            made.post_processor = TemplateProcessing(
                single="<teacher> $A", special_tokens=[("<teacher>", made.token_to_id("<teacher>"))]
            )
        made.save(str(tmp_path / f"{side}.json"))
        monkeypatch.setenv(f"{side.upper()}_TOKENIZER", str(tmp_path / f"{side}.json"))
    student, teacher = (TokenSpans(tmp_path / f"{side}.json") for side in ("student", "teacher"))
    example, asked = load_example("on_policy"), []

    class Manager:
        async def compute_teacher_logprobs_single(self, ids):
            asked.append(ids)
            return torch.tensor(ids)[:, None], torch.full((len(ids), 1), -1.0)

    response = student.encode(["19"]).ids.tolist()
    prompt_ids = student.encode([prompt]).ids.tolist()
    compute = example.AcrossTokenizers(Manager()).compute_teacher_logprobs
    asyncio.run(compute(prompt_ids, response, [-1.0] * len(response)))
    expected = [text.ids.tolist() for text in teacher.encode([prompt, "19"])]
    assert asked == [[teacher.token_id("<teacher>"), *expected[0], *expected[1]]]
    again, added = example.with_bos(teacher, np.array(asked[0]))
    assert (again, added) == (asked[0], 0)
