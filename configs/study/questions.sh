#!/bin/bash
# What models lose on the gold answers of the first 300 questions of a benchmark: a minute for each model of 135 M weights on two cores.
#   bash configs/study/questions.sh OUT QUESTIONS.jsonl NAME=MODEL [NAME=MODEL ...]
# From the folder of the project, with vocagno on the path. QUESTIONS are GSM8K's (`vocagno eval --fetch`); differences are from the
# first model. Stores that exist already are kept.
set -euo pipefail
out=$1 questions=$2 stores=()
mkdir -p "$out"
python -m research.gold_answers "$questions" --most 300 --write "$out/text.jsonl"
for pair in "${@:3}"; do
  vocagno score "$out/text.jsonl" --teacher.model "${pair#*=}" --out "$out/${pair%%=*}" --teacher.context 512 --teacher.dtype bfloat16
  stores+=("$out/${pair%%=*}")
done
python -m research.gold_answers "$questions" "${stores[@]}" --most 300
