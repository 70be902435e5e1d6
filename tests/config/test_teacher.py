"""Options of a teacher: what follows from others, and what contradicts them."""

import pytest

from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.training.configuration import parse


def test_min_context_follows_from_the_context():
    for context, expected in {2048: 512, 64: 16, 2: 1}.items():
        assert TeacherConfig(model="x", context=context).context_before == expected
    assert TeacherConfig(model="x", context=64, min_context=5).context_before == 5


SERVER = {"server": "http://x", "tokenizer": "t"}
VLLM = {"model": "x", "engine": "vllm"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server": "http://x"}, "server: needs teacher.tokenizer"),
        (SERVER | {"gguf_file": "x"}, "server: excludes teacher.gguf_file"),
        (SERVER | {"mode": "live"}, "server: excludes teacher.mode: live"),
        (SERVER | {"requests": 0}, "requests must be at least 1"),
        ({"scores": "store", "bos": "<s>"}, "bos: needs teacher.model or teacher.tokenizer"),
        (SERVER | {"candidates": 5, "sampled": True}, "server: excludes teacher.sampled"),
        (SERVER | {"protocol": "openai", "candidates": 5}, "candidates: a server of .*: openai"),
        (VLLM | SERVER, "engine: vllm excludes teacher.server; omit"),
        (VLLM | {"gguf_file": "x"}, "engine: vllm excludes teacher.gguf_file; omit"),
        (VLLM | {"device_map": "auto"}, "engine: vllm excludes teacher.device_map; omit"),
        (VLLM | {"attention": "sdpa"}, "engine: vllm excludes teacher.attention; omit"),
        (VLLM | {"tensor_parallel": True}, "engine: vllm excludes teacher.tensor_parallel; omit"),
        (VLLM | {"batching": "packed"}, "engine: vllm excludes teacher.batching: packed; omit"),
        (VLLM | {"mode": "live"}, "engine: vllm excludes teacher.mode: live; omit"),
        ({"mode": "live", "scores": "store"}, "scores: are for teacher.mode: stored"),
        ({"mode": "live", "tensor_parallel": True}, "tensor_parallel: is for scoring"),
        ({"shard": True}, "shard: is for teacher.mode: live"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options, words):
    with pytest.raises(ConfigError, match=f"^teacher.{words}"):
        TeacherConfig(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "x"}, None),
        (SERVER | {"requests": 4}, None),
        ({"model": "x", "requests": 4}, "teacher.requests: without effect here: only of teacher.s"),
        (SERVER | {"batch_tokens": 64}, "teacher.batch_tokens: without effect here: of a teacher"),
    ],
)
def test_options_without_an_effect_are_named(options, words):
    """Not refused: the configuration of an earlier run may have them."""
    warning = TeacherConfig(**options).warning
    assert warning is None if words is None else warning.startswith(words)


def test_distill_asks_for_candidates_sampled_where_the_teacher_can():
    cases = ({"model": "T"}, (8, True)), (SERVER, (16, False)), (VLLM, (16, False))
    cases += (VLLM | {"candidates": 5}, (5, None)), ({"model": "T", "sampled": False}, (16, False))
    for options, expected in cases:
        words = ["--guidance.method=distill", "--data.train=c", "--train.steps=1", "--output=o"]
        words += [f"--teacher.{name}={value}" for name, value in options.items()]
        everywhere = ["--guidance.distill_where=all", *words]
        teacher = parse(["--student.model=S", *everywhere]).teacher
        assert (teacher.candidates, teacher.sampled) == expected
        if "model" in options and "engine" not in options:
            continue
        with pytest.raises(ConfigError, match="surer needs the entropy of the teacher's dist"):
            parse(["--student.model=S", *words])
