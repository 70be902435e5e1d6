#!/bin/bash
# The study of real pretrained models, on two cores that multiply bfloat16: an hour and a half to begin with, then two hours for each order.
#   bash configs/study/real.sh TRAIN.jsonl VALID.jsonl SMOLLM2.gguf GEMMA.gguf OUT [SEED...]
# From the folder of the project, with vocagno on the path. Both files hold their models' weights: SmolLM2-135M-Instruct and Gemma 3 270M.
set -euo pipefail
train=$1 valid=$2 student=$3 teacher=$4 out=$5
seeds=("${@:6}")
# bfloat16, or on a CPU that multiplies float32 faster: DTYPE=float32 PRECISION=fp32, as order 13.
dtype=${DTYPE:-bfloat16} precision=${PRECISION:-bf16}
texts=$out/texts
mkdir -p "$out"
[ -e "$texts" ] || python -m research.study_text "$train" "$valid" "$texts"
[ -e "$out/smollm2" ] || vocagno unpack "$student" --out "$out/smollm2"
[ -e "$out/gemma" ] || vocagno unpack "$teacher" --out "$out/gemma"

cut_to() { awk -v most="$1" '{ print; bytes += length($0) } bytes > most { exit }' "$2"; }
# Held out: beginnings of every third document, and prose and code of Python itself, which is wherever this runs.
python - "$texts" "$out" <<'END'
import heapq, inspect, json, sys, textwrap
from pathlib import Path
from pydoc_data.topics import topics
texts, out = map(Path, sys.argv[1:])
def write(name, documents):
    (out / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
for part in ("dev", "test"):
    lines = (texts / f"valid-{part}.jsonl").read_text().splitlines()[::3]
    write(f"valid-{part}.jsonl", [json.loads(line)["text"][:2000] for line in lines])
code = [inspect.getsource(module)[:8000] for module in (heapq, textwrap)]
write("other.jsonl", [topics[name][:2000] for name in sorted(topics)[::8]] + code)
END
# A model after 0.2 M tokens of other text from the same sources.
cut_to 640000 "$texts/reference.jsonl" > "$out/reference.jsonl"
adapt() {  # MODEL FOLDER LEARNING_RATE ITS_TENTH
  [ -e "$out/$2/final" ] || python train.py --config configs/real-text.yaml --guidance.method cpt --student.architecture null \
    --student.model "$out/$1" --data.train "$out/reference.jsonl" --data.validation "$out/valid-dev.jsonl" --optimizer.lr "$3" \
    --optimizer.min_lr "$4" --optimizer.warmup_steps 5 --train.steps 96 --train.precision $precision --train.eval_every 96 \
    --train.checkpoint_every 24 --output "$out/$2" "${@:5}"
}
adapt gemma adapted 5e-5 5e-6
adapt smollm2 adapted-smollm2 4e-4 4e-5 --student.eos "<|endoftext|>"

score() {  # CELL TEACHER STORE [CONTEXT MIN_CONTEXT OPTIONS...]
  vocagno score "$out/$1/text.jsonl" --teacher.model "$out/$2" --out "$out/$1/$3" --teacher.context "${4:-512}" --teacher.min_context "${5:-128}" \
    --teacher.batch_tokens 2048 --teacher.dtype $dtype --candidates 8 --sampled --student "$out/smollm2" "${@:6}"
}

train() {  # CELL HELD_OUT OPTIONS...
  python -m research.study configs/study/real.yaml --out "$out/$1" --set "data.train=$out/$1/text.jsonl" "data.validation={mathematics: $2, other: $out/other.jsonl}" \
    train.precision=$precision "${@:3}"
}

cell() {  # NAME TEXT HELD_OUT OPTIONS...
  mkdir -p "$out/$1"
  cut_to 290000 "$texts/$2.jsonl" > "$out/$1/text.jsonl"
  cut_to 520000 "$texts/$2.jsonl" > "$out/$1/more.jsonl"
  score "$1" gemma gemma
  score "$1" adapted/final adapted
  if [ "$1" = clean ]; then
    score "$1" adapted-smollm2/final adapted-smollm2
    score "$1" adapted-smollm2/final adapted-smollm2-short 256 1
    score "$1" adapted/final adapted-short 256 1
    vocagno prepare "$out/$1/text.jsonl" --tokenizer "$out/smollm2" --eos "<|endoftext|>" --seq_len 256 --out "$out/$1/rows"
    score "$1" gemma pieces 512 128 --rows "$out/$1/rows"
    score "$1" adapted/final adapted-pieces 512 128 --rows "$out/$1/rows"
  fi
  [ -e "$out/$1/oracle" ] || python -m research.known_scores "$out/$1/text.jsonl" "$out/$1/oracle" --kind oracle
  train "$1" "$3" "${@:4}"
}

# Half the steps, to choose the learning rates.
cell dev dev-clean "$out/valid-dev.jsonl" train.steps=24 --seeds 20 --only "naive, 2e-5" "naive, 5e-5" "naive, 1e-4" "naive, 2e-4" \
  "naive, 8e-4" "distill, adapted, 1e-4" "distill, adapted, 2e-4" "distill, adapted" "distill, adapted, 8e-4"
for seed in "${seeds[@]:-10 11 12}"; do
  cell clean test-clean "$out/valid-test.jsonl" --seeds $seed --only "naive, micro-batches of 4" "naive, 88 steps" "naive, 88 steps, same text" default "default, adapted" "lines 99 %, groups -1" paper distill "distill, pieces" \
    "distill, live" "distill, adapted" \
    "distill, adapted, surer" "alm, adapted" "distill, adapted self" "distill, adapted self, live" "kld, adapted self" "distill, adapted self, short" "distill, adapted, short" \
    "distill, adapted, pieces" "distill, adapted, live"
  cell junk test-junk "$out/valid-test.jsonl" --seeds $seed --only default "default, adapted" paper "lines 99 %" "lines 99 %, groups -1" oracle "lines, distill"
done
# Three times as many tokens, for the two best: an hour and a quarter.
mkdir -p "$out/long"
cut_to 870000 "$texts/test-clean.jsonl" > "$out/long/text.jsonl"
score long adapted/final adapted
train long "$out/valid-test.jsonl" train.steps=144 --seeds 12 --only "distill, adapted" "distill, adapted, live"
