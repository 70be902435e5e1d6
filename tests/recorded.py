"""Losses and weights of every rule on recorded batches and runs, as digests of their bits.

    python tests/recorded.py write target/recorded.json      # before a change of structure
    python tests/recorded.py compare target/recorded.json    # after it, on the same machine

200 batches through `guided_batch` and `selective_cross_entropy`: losses, weights and gradients of
each rule. Then whole runs: what they log, and their last weights. Bits differ between machines and
versions of torch, so the file is not committed.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
os.environ["ACCELERATE_USE_CPU"] = "true"
sys.path[:0] = [str(Path(__file__).parent / "support")]

import numpy as np
import torch

from corpora import write_corpus
from families import FAMILIES, HARD_TEXTS, TEXTS
from runs import final_weights, metrics, train_here, write_config
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.guidance import GuidanceConfig, guided_batch, selective_cross_entropy

RULES = {
    "default": {},
    "lines 1.2": {"window_max_loss": 1.2},
    "lines, tokens": {"unit": "token", "window_max_loss": 1.2},
    "lines exclude": {"window_max_loss": 1.2, "unmapped": "exclude"},
    "paper": {"top_fraction": 0.4},
    "paper mean": {"top_fraction": 0.4, "aggregation": "mean"},
    "paper exclude": {"top_fraction": 0.5, "unmapped": "exclude"},
    "groups >= 0": {"top_fraction": None, "max_threshold": 0.0, "unit": "group"},
    "lines, groups >= -1": {
        "unit": "group",
        "max_threshold": -1.0,
        "window": "line",
        "window_max_loss": 2.0,
    },
    "cpt": {"method": "cpt"},
}
RUNS = {
    "default": {},
    "paper": {"guidance": {"top_fraction": 0.4}},
    "groups": {"guidance": {"unit": "group", "top_fraction": None, "max_threshold": 0.0}},
    "lines": {"guidance": {"window": "line", "window_max_loss": 1.2, "max_threshold": -1.0}},
    "tokens": {"guidance": {"unit": "token", "window_max_loss": 1.2}, "data": {"isolate": True}},
    "live": {"teacher": {"mode": "live"}},
    "live paper": {"teacher": {"mode": "live"}, "guidance": {"top_fraction": 0.4}},
    "uld": {"guidance": {"method": "uld"}, "teacher": {"mode": "live"}},
    "cpt": {"guidance": {"method": "cpt"}},
    "accumulated": {"train": {"micro_batch": 2}},
}
_TIMES = ("per_s", "share", "memory", "seconds")
"""Parts of the names of what differs from run to run."""


def digest(*arrays: np.ndarray) -> str:
    return hashlib.blake2b(b"".join(a.tobytes() for a in arrays), digest_size=8).hexdigest()


def batches() -> dict[str, str]:
    """20 batches a rule."""
    student, teacher = (TokenSpans(FAMILIES[name]()) for name in ("llama", "byte-level"))
    eos = student.token_id("</s>")
    found = {}
    for name, options in RULES.items():
        guidance = GuidanceConfig(**options)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            texts = [TEXTS[i] + "\n" + TEXTS[j] for i, j in rng.integers(0, 6, (4, 2))]
            texts += [text for text in HARD_TEXTS[seed : seed + 2] if text and "<s>" not in text]
            own, other = student.encode(texts), teacher.encode(texts)
            nll = rng.exponential(1.2, len(other.ids)).astype(np.float32)
            nll[other.cu_seqlens[:-1][np.diff(other.cu_seqlens) > 0]] = np.nan
            batch = guided_batch(student, own, other, nll, guidance, eos_id=eos)
            generator = torch.Generator().manual_seed(seed)
            shape = (student.vocabulary_size, 16)
            weight = torch.randn(shape, generator=generator).requires_grad_()
            hidden = torch.randn(*batch.labels_BT.shape, 16, generator=generator).requires_grad_()
            total, kept = selective_cross_entropy(
                hidden,
                weight,
                batch.labels_BT,
                batch.teacher,
                guidance,
            )
            total.backward()
            tensors = total.detach(), kept.weights_BT, weight.grad, hidden.grad
            found[f"{name} {seed}"] = digest(*(tensor.numpy() for tensor in tensors))
    return found


def runs(folder: Path) -> dict[str, str]:
    """What a run logs, and its last weights."""
    tokenizers = {"student": FAMILIES["llama"](), "teacher": FAMILIES["byte-level"]()}
    for name, tokenizer in tokenizers.items():
        tokenizer.save(str(folder / f"{name}.json"))
    model = tiny_llama(tokenizers["teacher"].get_vocab_size(), seed=1)
    model.save_pretrained(folder / "model")
    tokenizers["teacher"].save(str(folder / "model" / "tokenizer.json"))
    corpus = write_corpus(folder / "c.jsonl", [*TEXTS, *HARD_TEXTS])
    found = {}
    for name, sections in RUNS.items():
        out = folder / name.replace(" ", "-")
        given = {"output": str(out), "train": {"log_every": 1}, **sections}
        given["guidance"] = given.get("guidance", {"method": "vocagno"})
        path = write_config(folder, corpus, folder, folder / "model", **given)
        if "top_fraction" not in given["guidance"]:  # the tests' files state the paper's rule
            path.write_text(path.read_text().replace("  top_fraction: 0.4\n", ""))
        assert train_here(path) == 0, name
        lines = [
            {k: v for k, v in one.items() if not any(part in k for part in _TIMES)}
            for one in metrics(out)[0]
        ]
        weights = digest(*(w.numpy() for _, w in sorted(final_weights(out).items())))
        found[f"run {name}"] = f"{weights} {digest(np.frombuffer(repr(lines).encode(), np.uint8))}"
    return found


def main(what: str, file: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = batches() | runs(Path(folder))
    if what == "write":
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{file}: {len(found)} digests of {len(set(found.values()))} values")
        return 0
    expected = json.loads(Path(file).read_text(encoding="utf-8"))
    different = [name for name in expected if found.get(name) != expected[name]]
    print(
        f"{len(expected)} digests, {len(different)} differ" + "".join(f"\n  {n}" for n in different)
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
