#!/bin/bash
# The study of `vocagno filter`: half an hour on two cores with AMX, half of it for SmolLM2's scores.
#   bash configs/study/filter.sh TRAIN.jsonl VALID.jsonl OUT
# From the folder of the project, with vocagno on the path, after real.sh with the same OUT, which unpacks SmolLM2 there.
set -euo pipefail
train=$1 valid=$2 out=$3
texts=$out/texts
[ -e "$texts" ] || python -m research.study_text "$train" "$valid" "$texts"
[ -e "$out/web" ] || ln -s smollm2 "$out/web"
python -m research.study configs/study/guidance-models.yaml --out "$out/models" --only student
awk 'NR % 2' "$texts/valid-test.jsonl" > "$out/valid-test-half.jsonl"

cell() {  # NAME BYTES OPTIONS...: bytes of the text, the part that a hundred steps read once it is clean
  folder=$out/$1-filter
  mkdir -p "$folder"
  awk -v most="$2" '{ print; bytes += length($0) } bytes > most { exit }' "$texts/test-$1.jsonl" > "$folder/text.jsonl"
  vocagno score "$folder/text.jsonl" --teacher.model "$out/web" --out "$folder/web" --teacher.context 512 --teacher.min_context 128 \
    --teacher.batch_tokens 2048 --teacher.dtype bfloat16
  [ -e "$folder/filtered" ] || vocagno filter "$folder/text.jsonl" --scores "$folder/web" --teacher.tokenizer "$out/web" --yes \
    --out "$folder/filtered"
  python -m research.study configs/study/filter.yaml --out "$folder" --set "data.train=$folder/text.jsonl" \
    "data.validation=$out/valid-test-half.jsonl" "${@:3}"
}
cell junk 1430000
cell clean 750000 --only default filtered
