#!/bin/bash
# The study of `vocagno filter`: forty minutes on two cores, most of them for the models.
#   bash configs/study/filter.sh TRAIN.jsonl VALID.jsonl OUT
# From the folder of the project, with vocagno on the path; the models are those of guidance.sh, if OUT is the same.
set -euo pipefail
train=$1 valid=$2 out=$3
texts=$out/texts
[ -e "$texts" ] || python -m research.study_text "$train" "$valid" "$texts"
python -m research.study configs/study/guidance-models.yaml --out "$out/models" --only student
awk 'NR % 2' "$texts/valid-test.jsonl" > "$out/valid-test-half.jsonl"
for name in clean junk; do
  folder=$out/$name-filter
  mkdir -p "$folder"
  cp "$texts/test-$name.jsonl" "$folder/text.jsonl"
  vocagno score "$folder/text.jsonl" --teacher.model "$out/models/before/like/final" --teacher.context 256 --teacher.min_context 128 \
    --out "$folder/like"
  [ -e "$folder/filtered" ] || vocagno filter "$folder/text.jsonl" --scores "$folder/like" --window_max_loss 2.46 --out "$folder/filtered" \
    --teacher.model "$out/models/before/like/final" --yes
  python -m research.study configs/study/filter.yaml --out "$folder" --set "data.train=$folder/text.jsonl" \
    "data.validation=$out/valid-test-half.jsonl"
done
