"""Small tokenizers of every family, trained here, and the texts they are trained on."""

import json

TEXTS = [
    "The sum of 17 and 25 is 42, so x = 42 and 2x = 84.",
    "Let $f(x) = \\frac{1}{2} x^2$. Then f'(x) = x for every real x.",
    "José bought 3 apples at 1.50 € each; he paid 4.50 € in all.",
    "def solve(a, b):\n    return -b / a  # a ≠ 0\n",
    "A prime has exactly two divisors: 2, 3, 5, 7, 11, 13, ...",
    "Naïve café crème brûlée, 12 ÷ 4 = 3, 3 × 4 = 12, π ≈ 3.14159.",
] * 4


HARD_TEXTS = [
    "",
    " ",
    "   ",
    "a",
    "\n",
    "\r\nx",
    "a\tb\n\n  c",
    "  leading",
    "trail  ",
    "∑ x² ≤ ∞",
    "😊 hi",
    " 𝒜 ∞",
    "cafe\u0301 nai\u0308ve",
    "\u1112\u1161\u11ab",
    "\u0928\u093c",
    "ﬁ①２０００…",
    "snake_case _x = a , b",
    "<s>hi</s>",
    "x<s>y",
    "👩\u200d🔬🇩🇪",
    "\x00\x10a",
    "\ufeffBOM \ufffd",
    "201 1100 3.14159",
    "a" * 300,
    " " * 300,
    "İstanbul ẞ",
    "▁ Ġ ▁▁x",
    "e\u0301e\u0301e\u0301",
    "日本語テキスト 한국어",
    "<0x0A> <unk>",
    "a\u0301\u0323b",
    "Erdo\u030bs",
    "\u2028x\u2029\u0085",
]


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
        {piece: i for i, piece in enumerate(pieces)},
        merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
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


MISSING_BYTES = frozenset(b"\x00\r\x10\x7f\x81\xcc\xe1\xf0")
"""Lacking in a vocabulary: controls, a line end, all bytes of some characters (U+0301), and the
first byte of others (emoji)."""
_THEIR_LETTERS = frozenset("ĀčĐġģÌáð")


def without_letters(letters=_THEIR_LETTERS, normalizer=None):
    """A byte-level BPE without an unknown token and without the letters of some bytes."""
    from tokenizers import Tokenizer

    spec = json.loads(_byte_level(normalizer).to_str())
    model = spec["model"]
    vocabulary, merges = model["vocab"].items(), model["merges"]
    model["vocab"] = {piece: i for piece, i in vocabulary if letters.isdisjoint(piece)}
    model["merges"] = [pair for pair in merges if letters.isdisjoint("".join(pair))]
    return Tokenizer.from_str(json.dumps(spec))


def _word_piece():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def train_unigram(normalizer=None, size=200, texts=TEXTS):
    """A Unigram as SentencePiece's are converted, with a normaliser in the place of NFKC."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer or normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = UnigramTrainer(
        vocab_size=size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The scores of pieces are rounded where they are written, and equal ones then cut otherwise.
    return Tokenizer.from_str(tokenizer.to_str())


def _nfc():
    from tokenizers import normalizers

    return normalizers.NFC()


CONTRACTIONS = [("...", "…"), ("1/2", "½"), ("ffi", "\ufb03"), ("fi", "\ufb01")]


def contracting(tokenizer):
    """A copy whose normaliser first makes one character of several."""
    from tokenizers import Tokenizer, normalizers

    copy = Tokenizer.from_str(tokenizer.to_str())
    parts = [normalizers.Replace(text, character) for text, character in CONTRACTIONS]
    copy.normalizer = normalizers.Sequence([*parts, *filter(None, [tokenizer.normalizer])])
    return copy


FAMILIES = {
    "llama": lambda: _llama_like(),
    "metaspace-always": lambda: _llama_like("always"),
    "metaspace-first": lambda: _llama_like("first"),
    "metaspace-never": lambda: _llama_like("never"),
    "byte-level": lambda: _byte_level(),
    "byte-level-nfc": lambda: _byte_level(_nfc()),
    "byte-level-prefix-space": lambda: _byte_level(add_prefix_space=True),
    "byte-level-trimmed": lambda: _byte_level(trim_offsets=True),
    "byte-level-missing": lambda: without_letters(),
    "byte-level-missing-nfc": lambda: without_letters(normalizer=_nfc()),
    "word-piece": _word_piece,
    "unigram": train_unigram,
}


LOSSLESS = [
    *("llama", "metaspace-always", "metaspace-first", "metaspace-never"),
    *("byte-level", "byte-level-prefix-space", "byte-level-trimmed"),
]


class Unproving:
    """A piece table that proves nothing, so that every text takes the tokenizer's offsets."""

    def __init__(self, table):
        self.table = table
        self.close = table.close

    def spans(self, *arguments):
        spans, proved = self.table.spans(*arguments)
        return spans * 0, proved & False


def without_unknown_token(*missing):
    """A Unigram tokenizer that cannot read some characters: it has no unknown token, and a piece
    for each character of the probes and the texts but these."""
    from tokenizers import Tokenizer, models

    from vocagno.tokens.tokenizer_checks import HARD_PROBES, PLAIN_PROBES

    characters = {*"".join([*PLAIN_PROBES, *HARD_PROBES, *TEXTS, "☃♞"]), *map(chr, range(32, 127))}
    pieces = [(character, -5.0) for character in sorted(characters - {*missing})]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("the", -4.0), ("er", -4.0)]))
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer
