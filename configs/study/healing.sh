#!/bin/bash
# The study of how a transferred model heals: about twenty minutes for each vocabulary on two cores with AMX.
#   bash configs/study/healing.sh OUT NAME=TOKENIZER,EOS [NAME=TOKENIZER,EOS ...]
# From the folder of the project, with vocagno on the path, after real.sh with the same OUT. `own` as a tokenizer is one of 8,192 tokens
# that is learned from the text; the name `old` keeps SmolLM2 as it is, for comparison.
set -euo pipefail
out=$1
mkdir -p "$out/healing"
text=$out/healing/text.jsonl
[ -e "$text" ] || python - "$out" <<'END'
import json, sys
from pathlib import Path
from pydoc_data.topics import topics
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
out = Path(sys.argv[1])
mathematics = (out / "clean" / "text.jsonl").read_text().splitlines(keepends=True)
# Every eighth topic is held out (real.sh).
names = [name for number, name in enumerate(sorted(topics)) if number % 8]
documents, size = [], 0
for name in names:
    documents.append(json.dumps({"text": topics[name]}) + "\n")
    size += len(topics[name])
    if size > 300_000:
        break
learned = Tokenizer(models.BPE())
learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
learned.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
learned.train_from_iterator([json.loads(line)["text"] for line in mathematics + documents], trainer)
learned.save(str(out / "healing" / "own.json"))
(out / "healing" / "text.jsonl").write_text("".join(mathematics + documents))
END
vocagno score "$text" --teacher.model "$out/smollm2" --out "$out/healing/old" --teacher.context 512 --teacher.min_context 128 \
  --teacher.batch_tokens 2048 --teacher.dtype bfloat16 --candidates 8 --sampled
for pair in "${@:2}"; do
  name=${pair%%=*} tokenizer=${pair#*=}
  eos=${tokenizer##*,} tokenizer=${tokenizer%,*}
  folder=$out/healing-$name
  mkdir -p "$folder"
  student=$folder/student methods=(--only "distill, old self")
  # One vocabulary tells what the method that needs only losses gains.
  [ "$name" != tinyllama ] || methods+=("alm, old self")
  if [ "$name" = old ]; then
    student=$out/smollm2 methods=(--only naive)
  elif [ ! -e "$student" ]; then
    [ "$tokenizer" != own ] || tokenizer=$out/healing/own.json
    vocagno transfer "$out/smollm2" "$tokenizer" --out "$student" --eos "$eos"
  fi
  python -m research.study configs/study/healing.yaml --out "$folder" "${methods[@]}" --set "data.train=$text" "student.model=$student" \
    "student.eos=$eos" \
    "data.validation={mathematics: $out/valid-test.jsonl, other: $out/other.jsonl}"
  # Losses are in nats a token; this makes them nats a byte, which compare across vocabularies.
  python - "$student" "$out" > "$folder/tokens_per_byte.json" <<'END'
import json, sys
from pathlib import Path
from vocagno import TokenSpans
spans, out, ratios = TokenSpans(Path(sys.argv[1]) / "tokenizer.json"), Path(sys.argv[2]), {}
for name, file in {"mathematics": "valid-test.jsonl", "other": "other.jsonl"}.items():
    texts = [json.loads(line)["text"] for line in (out / file).read_text().splitlines()]
    tokens = len(spans.encode(texts).ids) + len(texts)  # with an EOS for each document
    ratios[name] = round(tokens / sum(len(text.encode()) for text in texts), 4)
print(json.dumps(ratios))
END
done
