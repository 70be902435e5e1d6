"""How sure trained students are, beside how often they are right.

    python benches/confidence.py TEXT RUN [RUN ...]

A student trained on tokens that were chosen by what they are sees rare outcomes more often than
they occur. This shows what its held-out loss is made of: the loss, the entropy of what it predicts
(nats a token; the same as the loss for a student that is as sure as it is right), the share of
tokens that it predicts best, the probability that it gives its best prediction, and the loss if its
logits are divided by the one temperature that suits it.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vocagno.corpus import read_batches
from vocagno.wording import in_table

TEMPERATURES = torch.linspace(0.4, 1.2, 33)
WINDOW = 256


def main() -> None:
    """Prints a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="held-out documents, as JSON Lines")
    parser.add_argument("runs", type=Path, nargs="+", help="the `output` of a finished run")
    parser.add_argument("--documents", type=int, default=12)
    options = parser.parse_args()
    texts = [text for batch in read_batches(options.text) for text in batch][: options.documents]
    titles = ["", "tokens", "loss", "entropy", "top-1 right", "top-1 probability",
              "temperature", "loss with it"]  # fmt: skip
    print(in_table([titles, *(line(run, texts) for run in options.runs)]))


@torch.inference_mode()
def line(run: Path, texts: list[str]) -> list[str]:
    """The figures of one run, in windows of as many tokens as it was trained on at a time."""
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    model = AutoModelForCausalLM.from_pretrained(run / "final", dtype=torch.float32).eval()
    count, sums, losses = 0, torch.zeros(4), torch.zeros(len(TEMPERATURES))
    for text in texts:
        ids = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
        for first in range(0, len(ids) - WINDOW, WINDOW):
            window = ids[None, first : first + WINDOW + 1]
            logits_TV, labels_T = model(window[:, :-1]).logits[0], window[0, 1:]
            log_p_TV = logits_TV.log_softmax(-1)
            best_T = log_p_TV.max(-1)
            sums += torch.stack([
                -log_p_TV.gather(1, labels_T[:, None]).sum(),
                -(log_p_TV.exp() * log_p_TV).sum(),
                (best_T.indices == labels_T).sum(),
                best_T.values.exp().sum(),
            ])  # fmt: skip
            losses += torch.stack([
                torch.nn.functional.cross_entropy(logits_TV / t, labels_T, reduction="sum")
                for t in TEMPERATURES
            ])  # fmt: skip
            count += len(labels_T)
    if not count:
        sys.exit(f"no document of the text has {WINDOW + 1} tokens")
    means, tempered = sums / count, losses / count
    suited = int(tempered.argmin())
    figures = [*means.tolist(), float(TEMPERATURES[suited]), float(tempered[suited])]
    return [run.name, f"{count:,}", *(f"{figure:.3f}" for figure in figures)]


if __name__ == "__main__":
    main()
