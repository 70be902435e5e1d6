"""A corpus, scores and a token file with the streams of `vocagno bake`, for every bridge.

PYTHONPATH=benches python -m bridges.material FOLDER

The teacher's losses and candidates are drawn, so that some tokens are dropped and others are not.
"""

import json
import sys
from pathlib import Path

import numpy as np

from bridges.comparison import CANDIDATES, bake
from vocagno import TokenSpans
from vocagno.data.corpus import text_hash
from vocagno.data.store.building import finish_store
from vocagno.quickstart.problems import documents
from vocagno.quickstart.tokenizers import EOS, train_tokenizers
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import SCORES, DocumentScores, write_scores

DOCUMENTS = 200


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    texts = [document["text"] for document in documents(0, DOCUMENTS, 0.2)]
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    student, teacher = map(TokenSpans, train_tokenizers(texts, folder))
    write_drawn_scores(folder / "scores", teacher, texts)
    tokens, eos = student.encode(texts), student.token_id(EOS)
    ids = [np.append(tokens.ids[tokens.text(index)], eos) for index in range(len(texts))]
    token_ids = np.concatenate(ids).astype(np.uint16)
    np.save(folder / "tokens.npy", token_ids)
    token_ids.tofile(folder / "raw.npy")  # as OLMo-core has it, without a header
    bake(folder, "tokens.npy", "--eos", EOS)
    bake(folder, "raw.npy", "--eos", EOS, "--dtype", "uint16")


def write_drawn_scores(folder: Path, teacher: TokenSpans, texts: list[str]) -> None:
    draw, tokens, scores = np.random.default_rng(0), teacher.encode(texts), []
    for index in range(len(texts)):
        spans = tokens.spans[tokens.text(index)]
        nll = draw.gamma(0.5, 12, len(spans))
        nll[0] = np.nan  # without BOS, as `vocagno score` has it
        drawn = np.stack([draw.permutation(teacher.vocabulary_size) for _ in spans])
        log_p = np.log(draw.dirichlet(np.ones(CANDIDATES + 1), len(spans)))
        real = tokens.ids[tokens.text(index)]
        likely = drawn[:, :CANDIDATES], log_p[:, :-1], teacher.vocabulary_size
        scores.append(DocumentScores(spans, nll, candidates=Candidates.of(real, *likely)))
    made_from = {"teacher": "drawn", "candidates": CANDIDATES, "tokenizer": teacher.fingerprint}
    write_scores(folder / "drawn.arrow", list(map(text_hash, texts)), scores, made_from)
    finish_store(folder, ["drawn"], SCORES)


if __name__ == "__main__":
    main()
