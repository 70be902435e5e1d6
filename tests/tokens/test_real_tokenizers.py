"""Real tokenizers on real text, where they lie beside the project: all 81 ordered pairs.

Every third text, and a part of the mathematics; all of them under `make chaos`.
"""

import pytest

import pairs
from chaos import repeats
from shared_data import REAL_TOKENIZERS, real_tokenizer, shared_texts

pytestmark = pytest.mark.slow

LOSSY = ("bert-base-uncased", "t5-small")
"""May have no token at all in a text: of blanks alone, or of what their normaliser removes."""


@pytest.fixture(scope="module")
def texts():
    return (shared_texts("stress") + shared_texts("math-valid")[::5])[:: repeats(1, 3)]


@pytest.fixture(scope="module")
def encoded(texts):
    """Each tokenizer with its tokens of all texts, made when asked for."""
    made = {}

    def side(name):
        if name not in made:
            spans = real_tokenizer(name)
            made[name] = spans, spans.encode(texts)
        return made[name]

    return side


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_spans_cover_every_text(encoded, texts, name):
    spans, tokens = encoded(name)
    pairs.check_side(spans, tokens, texts)
    without = [i for i in range(len(texts)) if texts[i] and not len(tokens.ids[tokens.text(i)])]
    assert not without or name in LOSSY
    assert all(not texts[i].isalnum() for i in without)


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_both_ways_give_the_same_spans(encoded, texts, name):
    spans, tokens = encoded(name)
    pairs.check_both_ways(tokens, pairs.by_offsets(spans, texts), texts)


@pytest.mark.parametrize("student", REAL_TOKENIZERS)
@pytest.mark.parametrize("teacher", REAL_TOKENIZERS)
def test_every_pair_is_aligned_as_defined(encoded, texts, student, teacher):
    left, right = encoded(student)[1], encoded(teacher)[1]
    pairs.check_mapping(left, right, texts, pairs.aligned(left, right))


@pytest.mark.parametrize(("name", "one_in"), [("math-train", 40), ("math-valid", 4)])
@pytest.mark.parametrize("teacher", ["qwen2.5", "mistral-v0.1", "deepseek-llm", "llama-3", "gpt2"])
def test_mathematics_is_proved_and_mapped(encoded, teacher, name, one_in):
    student, other = encoded("tinyllama")[0], encoded(teacher)[0]
    everything = shared_texts(name)[:: repeats(1, one_in)]
    for start in range(0, len(everything), 512):
        left, right, mapping = pairs.check_pair(student, other, everything[start : start + 512])
        assert left.proved.all()
        assert right.proved.all()
        assert (mapping[left.spans[:, 0] < left.spans[:, 1]] >= 0).all()
