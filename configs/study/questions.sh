#!/bin/bash
# What models lose on the gold answers of the first 300 questions of a benchmark.
#   bash configs/study/questions.sh OUT QUESTIONS.jsonl NAME=MODEL [NAME=MODEL ...]
# From the folder of the project, with vocagno on the path. QUESTIONS are GSM8K's (`vocagno eval --fetch`); differences are from the
# first model. A store that exists is kept if it is of the same model and text, and refused otherwise.
set -euo pipefail
out=$1 questions=$2 stores=()
for pair in "${@:3}"; do
  [[ "$pair" =~ ^[^/=]+=. ]] || { echo "error: $pair: expected NAME=MODEL, and a NAME without /" >&2; exit 1; }
done
mkdir -p "$out"
[ -e "$out/text.jsonl" ] || python -m research.gold_answers "$questions" --most 300 --write "$out/text.jsonl"
for pair in "${@:3}"; do
  vocagno score "$out/text.jsonl" --teacher.model "${pair#*=}" --out "$out/${pair%%=*}" --teacher.context 512 --teacher.dtype bfloat16 >&2
  stores+=("$out/${pair%%=*}")
done
python -m research.gold_answers "$questions" "${stores[@]}" --most 300
