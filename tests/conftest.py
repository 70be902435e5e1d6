"""Small tokenizers of every family, trained here, and tiny models; nothing is downloaded."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Real tokenizers and texts that may lie beside the project."""

REAL_TOKENIZERS = [
    "bert-base-uncased", "deepseek-llm", "gpt2", "llama-3", "mistral-v0.1", "pythia", "qwen2.5",
    "t5-small", "tinyllama",
]  # fmt: skip
"""What may lie in `shared/tokenizers`, each a NAME.json.gz."""

TEXTS = [
    "The sum of 17 and 25 is 42, so x = 42 and 2x = 84.",
    "Let $f(x) = \\frac{1}{2} x^2$. Then f'(x) = x for every real x.",
    "José bought 3 apples at 1.50 € each; he paid 4.50 € in all.",
    "def solve(a, b):\n    return -b / a  # a ≠ 0\n",
    "A prime has exactly two divisors: 2, 3, 5, 7, 11, 13, ...",
    "Naïve café crème brûlée, 12 ÷ 4 = 3, 3 × 4 = 12, π ≈ 3.14159.",
] * 4

HARD_TEXTS = [
    "", " ", "   ", "a", "\n", "\r\nx", "a\tb\n\n  c", "  leading", "trail  ", "∑ x² ≤ ∞",
    "😊 hi", " 𝒜 ∞", "cafe\u0301 nai\u0308ve", "\u1112\u1161\u11ab", "\u0928\u093c", "ﬁ①２０００…",
    "snake_case _x = a , b", "<s>hi</s>", "x<s>y", "👩\u200d🔬🇩🇪", "\x00\x10a", "\ufeffBOM \ufffd",
    "201 1100 3.14159", "a" * 300, " " * 300, "İstanbul ẞ", "▁ Ġ ▁▁x", "e\u0301e\u0301e\u0301",
    "日本語テキスト 한국어", "<0x0A> <unk>", "a\u0301\u0323b", "Erdo\u030bs", "\u2028x\u2029\u0085",
]  # fmt: skip


def _llama_like(prepend_scheme=None, size=400):
    """BPE with byte fallback and `▁`: the legacy Prepend form, or Metaspace with a scheme."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    def base(model):
        tokenizer = Tokenizer(model)
        if prepend_scheme is None:
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
                prepend_scheme=prepend_scheme, split=False
            )
        return tokenizer

    draft = base(models.BPE(unk_token="<unk>"))
    # Words apart while training, so that pieces stay short; the tokenizer itself does not split.
    draft.normalizer = normalizers.Replace(" ", " ")
    draft.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    draft.train_from_iterator(TEXTS, BpeTrainer(vocab_size=size, show_progress=False))
    learned = json.loads(draft.to_str())["model"]
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = special + [piece for piece in learned["vocab"] if piece not in special]
    merges = [tuple(merge) for merge in learned["merges"]]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, merges,
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    tokenizer = base(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _byte_level(normalizer=None, *, trim_offsets=False, add_prefix_space=False, size=500):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _word_piece():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _unigram():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _nfc():
    from tokenizers import normalizers

    return normalizers.NFC()


FAMILIES = {
    "llama": lambda: _llama_like(),
    "metaspace-always": lambda: _llama_like("always"),
    "metaspace-first": lambda: _llama_like("first"),
    "metaspace-never": lambda: _llama_like("never"),
    "byte-level": lambda: _byte_level(),
    "byte-level-nfc": lambda: _byte_level(_nfc()),
    "byte-level-prefix-space": lambda: _byte_level(add_prefix_space=True),
    "byte-level-trimmed": lambda: _byte_level(trim_offsets=True),
    "word-piece": _word_piece,
    "unigram": _unigram,
}
LOSSLESS = [name for name in FAMILIES if name not in ("word-piece", "unigram", "byte-level-nfc")]


class Unproving:
    """A piece table that proves nothing, so that every text takes the tokenizer's offsets."""

    def __init__(self, table):
        self.table = table
        self.close = table.close

    def spans(self, *arguments):
        spans, proved = self.table.spans(*arguments)
        return spans * 0, proved & False


@pytest.fixture(scope="session")
def tokenizers():
    """Every family by name."""
    return {name: build() for name, build in FAMILIES.items()}


@pytest.fixture(scope="session")
def tokenizer_files(tokenizers, tmp_path_factory):
    """`student` (llama) and `teacher` (byte-level) as tokenizer.json files."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for name, family in (("student", "llama"), ("teacher", "byte-level")):
        tokenizers[family].save(str(folder / f"{name}.json"))
    return folder


@pytest.fixture(scope="session")
def teacher_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama and the byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny_llama(tokenizers["byte-level"].get_vocab_size(), seed=1).save_pretrained(folder)
    tokenizers["byte-level"].save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def same_vocabulary_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama and the student's tokenizer; its head has ids to spare."""
    folder = tmp_path_factory.mktemp("same")
    tiny_llama(tokenizers["llama"].get_vocab_size() + 16, seed=5).save_pretrained(folder)
    tokenizers["llama"].save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def corpus(tmp_path):
    """A small corpus as JSON Lines."""
    return write_corpus(tmp_path / "c.jsonl", TEXTS)


@pytest.fixture
def config(tmp_path, corpus, tokenizer_files, teacher_model):
    """Writes the configuration of a small guided run; sections override single options."""
    from runs import write_config

    def write(**sections):
        return write_config(tmp_path, corpus, tokenizer_files, teacher_model, **sections)

    return write


def tiny_llama(vocab_size, seed=0, **options):
    """A Llama of some thousand weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    }  # fmt: skip
    config = LlamaConfig(vocab_size=vocab_size, **{**sizes, **options})
    return LlamaForCausalLM(config).eval()


def scaled_models():
    """Tiny models that cap or scale their logits: Gemma 2, Cohere, Granite."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    options = {
        "gemma2": {"final_logit_softcapping": 0.5}, "cohere": {"logit_scale": 4.0},
        "granite": {"logits_scaling": 0.5},
    }  # fmt: skip
    for kind, special in options.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **sizes, **special)
        yield AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def write_corpus(path, texts):
    """JSON Lines of `{"text": ...}`."""
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def shared(*parts):
    """A file or folder beside the project, or a skip that says what is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real data is not beside the project: {'/'.join(('shared', *parts))}")
    return path


def shared_texts(name):
    """The documents of a corpus beside the project."""
    with gzip.open(shared("data", f"{name}.jsonl.gz"), "rb") as lines:
        return [json.loads(line)["text"] for line in lines]
