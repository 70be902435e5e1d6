#!/bin/bash
# The study of `vocagno filter`: a quarter of an hour on two cores, after ten minutes for the student of guidance-models.yaml.
#   bash configs/study/filter.sh OUT
# From the folder of the project, with vocagno on the path, after real.sh with the same OUT: its texts, and Gemma's scores of them.
set -euo pipefail
out=$1
texts=$out/texts
python -m research.study configs/study/guidance-models.yaml --out "$out/models" --only student
awk 'NR % 2' "$texts/valid-test.jsonl" > "$out/valid-test-half.jsonl"

cell() {  # NAME VARIANT...
  folder=$out/$1-filter
  mkdir -p "$folder"
  ln -sfn "../$1/gemma" "$folder/gemma"
  [ -e "$folder/filtered" ] || vocagno filter "$out/$1/text.jsonl" --scores "$folder/gemma" --teacher.tokenizer "$out/gemma" \
    --out "$folder/filtered"
  python -m research.study configs/study/filter.yaml --out "$folder" --only "${@:2}" --set "data.train=$out/$1/text.jsonl" \
    "data.validation=$out/valid-test-half.jsonl"
}
cell junk default filtered "filtered, 28 steps"
cell clean default filtered
