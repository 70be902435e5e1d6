"""Carries a linear probe from a teacher to a student with another tokenizer.

python examples/probe.py TEACHER STUDENT corpus.jsonl.gz

A probe is a logistic regression from a model's hidden states to a label of each token. The
teacher's probe learns the labels; its scores of the teacher's tokens are carried to the student's
tokens, and the student's probe learns only from these: what was labelled for one tokenizer serves
another. Here labels are read from the text (in a LaTeX formula, or whatever `--label` matches), so
that both sides can be checked, on every fourth document, from which no probe learns.
"""

import argparse
import re
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModel

import vocagno
from vocagno.data.corpus import read_batches
from vocagno.models.weights import largest_input


class Side(NamedTuple):
    """The texts as one model reads them: a row for each token."""

    tokens: vocagno.TokenizedTexts
    states: torch.Tensor
    labels: np.ndarray  # 1, 0, or NaN for a token without text
    held_out: np.ndarray


def read(name: str, layer: int) -> Side:
    tokenizer = vocagno.TokenSpans.from_pretrained(name)
    model = AutoModel.from_pretrained(name, dtype=torch.float32).to(args.device).eval()
    tokens = tokenizer.encode([text[: args.characters] for text in texts])
    before, after = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    context = largest_input(model.config)
    states, labels = [], []
    for number, text in enumerate(texts):
        rows = tokens.text(number)
        ids = before + tokens.ids[rows].tolist() + after
        if context and len(ids) > context:
            parser.error(f"{name} reads {context} tokens, not {len(ids)}: lower --characters")
        with torch.inference_mode():
            output = model(torch.tensor([ids], device=args.device), output_hidden_states=True)
        states.append(output.hidden_states[layer][0, len(before) : len(ids) - len(after)])
        labels.append(labels_of(text, tokens.spans[rows]))
    held_out = np.repeat(np.arange(len(texts)) % 4 == 3, np.diff(tokens.cu_seqlens))
    return Side(tokens, torch.cat(states), np.concatenate(labels), held_out)


def labels_of(text: str, spans: np.ndarray) -> np.ndarray:
    """1 where `--label` matches half of a token's bytes, else 0."""
    of_characters = np.zeros(len(text))
    for match in args.label.finditer(text):
        of_characters[slice(*match.span())] = 1
    starts_character = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    of_bytes = of_characters[np.cumsum(starts_character) - 1]
    byte_spans = np.arange(len(of_bytes))[:, None] + [0, 1]
    share = vocagno.reduce(of_bytes, vocagno.align(spans, byte_spans), how="mean")
    return np.where(np.isnan(share), np.nan, share >= 0.5)


def probe(states: torch.Tensor, targets: np.ndarray) -> np.ndarray:
    """Scores of all tokens, from 0 to 1, learnt from those whose target is not NaN."""
    has_target = torch.from_numpy(~np.isnan(targets)).to(states.device)
    inputs = (states - states[has_target].mean(0)) / (states[has_target].std(0) + 1e-6)
    learnt, learnt_targets = inputs[has_target], torch.from_numpy(targets).to(states)[has_target]
    linear = torch.nn.Linear(states.shape[1], 1, device=states.device)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = binary_cross_entropy_with_logits(linear(learnt)[:, 0], learnt_targets)
        value = value + 1e-4 * linear.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return linear(inputs)[:, 0].sigmoid().detach().cpu().numpy()


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("teacher", help="a folder with a model and its tokenizer")
parser.add_argument("student", help="another")
parser.add_argument("corpus", help="JSON Lines with a `text`, or what else vocagno reads")
parser.add_argument("--label", type=re.compile, default=r"\$+[^$]+\$+", help="a regular expression")
parser.add_argument("--documents", type=int, default=100, help="how many are read")
parser.add_argument("--characters", type=int, default=1000, help="how many of each document")
parser.add_argument("--layers", type=int, nargs=2, default=(-1, -1), help="of both; 0: embeddings")
parser.add_argument("--how", choices=("mean", "max"), default="mean", help="several scores to one")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()

documents = chain.from_iterable(read_batches(args.corpus))
texts = [text for text in islice(documents, args.documents) if text[: args.characters]]
if len(texts) < 4:
    parser.error(f"expected 4 documents at least, got {len(texts)}: every fourth is held out")
if not any(args.label.search(text) for text in texts):
    parser.error(f"--label: {args.label.pattern} is nowhere in the {len(texts)} documents")

torch.manual_seed(0)
teacher, student = map(read, (args.teacher, args.student), args.layers)
scores = probe(teacher.states, np.where(teacher.held_out, np.nan, teacher.labels))
scores[np.isnan(teacher.labels)] = np.nan  # a token without text has nothing to carry
mapping = vocagno.align(
    student.tokens.spans,
    teacher.tokens.spans,
    student_cu_seqlens=student.tokens.cu_seqlens,
    teacher_cu_seqlens=teacher.tokens.cu_seqlens,
)
carried = vocagno.reduce(scores, mapping, how=args.how)
from_carried = probe(student.states, np.where(student.held_out, np.nan, carried))
from_labels = probe(student.states, np.where(student.held_out, np.nan, student.labels))

print("  tokens  majority  accuracy")
for description, side, predictions in (
    ("teacher's probe on its own tokens", teacher, scores),
    ("its scores, carried to the student's tokens", student, carried),
    ("student's probe, from the carried scores", student, from_carried),
    ("student's probe, from the labels, to compare", student, from_labels),
):
    tested = side.held_out & ~np.isnan(side.labels) & ~np.isnan(predictions)
    labels = side.labels[tested]
    share, accuracy = labels.mean(), ((predictions[tested] >= 0.5) == labels).mean()
    print(f"{len(labels):8,}  {max(share, 1 - share):8.1%}  {accuracy:8.1%}  {description}")
