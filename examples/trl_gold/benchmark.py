"""TRL's GOLD trainer before and after `gold.patch`: tokens kept, tokens misaligned, time.

    python examples/trl_gold/benchmark.py STUDENT TEACHER TEXTS [NUMBER]

The patch is for trl 1.16.0. In site-packages it is applied for good by

    git apply --unidiff-zero --include='trl/*' .../gold.patch

Here a copy of the installed package is patched and imported next to it, and both get the same
input: two tokenizers (files, folders or names), and the first NUMBER texts (64) of a file of JSON
lines.

"Given" are completions of a dataset; "sampled" are the first half of a text's ids and EOS, as a
student generates them. A student token is kept if its group has the same text on both sides. The
bytes of both sides' ids say so, without any offsets, up to Unicode composition (NFC) and the space
that a tokenizer puts before a text. Times are CPU times, the shortest of three for each text.
"""

import gzip
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import trl
from transformers import PreTrainedTokenizerFast

import vocagno

PATCH = Path(__file__).with_name("gold.patch")
VERSION = "1.16.0"
Offsets = list[tuple[int, int]]


def patch_trl(folder: Path) -> Path:
    """Copies the installed TRL into `folder`, with the patch and its tests. Returns the folder.

    Raises: RuntimeError for another version of TRL.
    """
    if (installed := importlib.metadata.version("trl")) != VERSION:
        raise RuntimeError(
            f"{PATCH.name} is for trl {VERSION}, and trl is {installed}: install {VERSION}"
        )
    shutil.copytree(Path(trl.__file__).parent, folder / "trl")
    command = ["git", "apply", "--unidiff-zero", "--include=trl/*", "--include=tests/*"]
    command.append(str(PATCH.resolve()))
    ceiling = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}  # no repository around it is meant
    subprocess.run(command, cwd=folder, check=True, env=os.environ | ceiling)
    return folder


def gold_trainer(folder: Path | None = None) -> Any:
    """The module of the installed TRL, or of the copy in a folder under another name."""
    if folder is None:
        return importlib.import_module("trl.experimental.gold.gold_trainer")
    (folder / "trl_patched").symlink_to("trl")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("trl_patched.experimental.gold.gold_trainer")
    finally:
        sys.path.remove(str(folder))


def read_completion(
    trainer: Any, student: Any, teacher: Any, text: str
) -> list[tuple[list[int], Offsets]]:
    """Reads ids and offsets of both sides for a completion of a dataset."""
    encode = trainer.encode_with_byte_offsets
    return [encode(side.backend_tokenizer, [text])[0] for side in (student, teacher)]


def read_sampled(
    trainer: Any, student: Any, teacher: Any, ids: list[int]
) -> list[tuple[list[int], Offsets]]:
    """Reads ids and offsets of both sides for sampled ids, of which the teacher reads the text."""
    self = trainer.GOLDTrainer.__new__(trainer.GOLDTrainer)
    self.use_uld_loss, self.teacher_tokenizer, self._tokenizer = True, teacher, student
    self.uld_loss_fn = SimpleNamespace(use_extended_uld=True)
    labels = torch.tensor([ids])
    text = student.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    batch = {"input_ids": labels, "labels": labels, "original_completion_text": [text]}
    self._maybe_add_completion_byte_offsets(batch)
    read_ids, labels, _, offsets = trainer.build_teacher_inputs_from_texts(
        teacher, ["a"], batch["original_completion_text"]
    )[:4]
    is_answer = labels[0] != -100
    answer, offsets = read_ids[0][is_answer].tolist(), offsets[0][is_answer].tolist()
    return [(ids, batch["byte_offsets"][0].tolist()), (answer[:-1], offsets[:-1])]  # without EOS


def count_matches(pieces: Any, ids: Any, groups: Any) -> tuple[int, int]:
    """Counts the student tokens in groups with the same text on both sides, and in others."""
    right = wrong = 0
    for rows in zip(*groups, strict=True):
        if not all(rows):
            continue
        texts = [
            _text(of_id, [side[row] for row in of_group])
            for of_id, side, of_group in zip(pieces, ids, rows, strict=True)
        ]
        is_right = texts[0] == texts[1]
        if 0 in rows[0]:  # a space before the text is a tokenizer's
            is_right |= texts[0].removeprefix(" ") == texts[1].removeprefix(" ")
        right, wrong = right + is_right * len(rows[0]), wrong + (not is_right) * len(rows[0])
    return right, wrong


def _text(piece_of_id: list[bytes | None], ids: list[int]) -> str:
    pieces = b"".join(piece_of_id[index] or b"" for index in ids)
    return unicodedata.normalize("NFC", pieces.decode(errors="surrogateescape"))


def measure(trainer: Any, read: Callable[..., Any], sides: Any, pieces: Any, inputs: Any) -> Any:
    """Counts tokens (kept, misaligned) and milliseconds (reading, aligning) over all inputs."""
    right = wrong = 0
    times = [0.0, 0.0]
    refused: Counter[str] = Counter()
    for completion in inputs:
        try:
            (ids, offsets), (read_ids, read_offsets) = read(trainer, *sides, completion)
        except (NotImplementedError, ValueError) as error:
            refused[f"{type(error).__name__}: {str(error)[:70]}"] += 1
            continue
        align = partial(groups_of, trainer, torch.tensor(offsets), torch.tensor(read_offsets))
        counts = count_matches(pieces, (ids, read_ids), align())
        right, wrong = right + counts[0], wrong + counts[1]
        times[0] += shortest(partial(read, trainer, *sides, completion))
        times[1] += shortest(align)
    for message, number in refused.items():
        print(f"{number} refused: {message} ...", file=sys.stderr)
    return right, wrong, *times


def groups_of(trainer: Any, student: torch.Tensor, teacher: torch.Tensor) -> Any:
    """The groups, from the tensors that the loss has: before, it makes lists of them."""
    if not hasattr(trainer, "is_vocagno_available"):
        student, teacher = student.tolist(), teacher.tolist()
    return trainer.ULDLoss._align_by_byte_offsets(student, teacher)


def shortest(function: Callable[[], Any]) -> float:
    def once() -> float:
        started = time.process_time()
        function()
        return 1e3 * (time.process_time() - started)

    return min(once() for _ in range(3))


def main(student: str, teacher: str, file: str, number: str = "64") -> None:
    opened = gzip.open if file.endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8") as lines:
        texts = [
            json.loads(line)["text"] for line, _ in zip(lines, range(int(number)), strict=False)
        ]
    spans = [vocagno.TokenSpans.from_pretrained(name) for name in (student, teacher)]
    sides = [
        PreTrainedTokenizerFast(
            tokenizer_object=side.tokenizer_copy(), eos_token=end, pad_token=end
        )
        for side, end in zip(spans, map(_end, spans), strict=True)
    ]
    pieces = [side.pieces() for side in spans]
    ids = [sides[0](text, add_special_tokens=False)["input_ids"] for text in texts]
    halves = [[*text_ids[: (len(text_ids) + 1) // 2], sides[0].eos_token_id] for text_ids in ids]
    with tempfile.TemporaryDirectory() as folder:
        versions = {"before": gold_trainer(), "after": gold_trainer(patch_trl(Path(folder)))}
        print("| completions | tokens | GOLD | kept | misaligned | ids and offsets | groups |")
        print("|---|---|---|---|---|---|---|")
        for kind, read, inputs, total in (
            ("given", read_completion, texts, sum(map(len, ids))),
            ("sampled", read_sampled, halves, sum(map(len, halves))),
        ):
            for name, trainer in versions.items():
                right, wrong, reading, aligning = measure(trainer, read, sides, pieces, inputs)
                shares = f"{right / total:.2%} | {wrong / total:.2%}"
                print(f"| {kind} | {total:,} | {name} | {shares}", end=" | ")
                print(f"{reading:.0f} ms | {aligning:.1f} ms |")


def _end(spans: vocagno.TokenSpans) -> str:
    """The special token that ends a text."""
    special = spans.describe().special_tokens
    return next((token for token in special if "end" in token or "/s" in token), special[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
