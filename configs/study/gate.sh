#!/bin/bash
# The study of where a teacher counts: two hours on two cores, half an hour of it for the scores of SmolLM2.
#   bash configs/study/gate.sh OUT
# After distributions.sh with the same OUT, which makes the texts and the models, SmolLM2's folder ($OUT/web) included.
set -euo pipefail
out=$1

score() {  # CELL TEACHER STORE OPTIONS...
  vocagno score "$out/$1-gate/text.jsonl" --teacher.model "$out/$2" --out "$out/$1-gate/$3" "${@:4}"
}
own=(--teacher.context 256 --teacher.min_context 128)
web=(--teacher.context 512 --teacher.min_context 128 --teacher.batch_tokens 2048 --teacher.dtype bfloat16)

cell() {  # NAME HELD_OUT OPTIONS...
  python -m research.study configs/study/gate.yaml --out "$out/$1-gate" --set "data.train=$out/$1-gate/text.jsonl" "data.validation=$2" "${@:3}"
}

for name in dev clean nothing longer; do
  mkdir -p "$out/$name-gate"
done
half() { awk '{ print; bytes += length($0) } bytes > 750000 { exit }' "$1" > "$2"; }
half "$out/texts/dev-clean.jsonl" "$out/dev-gate/text.jsonl"
half "$out/texts/test-clean.jsonl" "$out/clean-gate/text.jsonl"
half "$out/texts/test-clean.jsonl" "$out/nothing-gate/text.jsonl"
cat "$out/texts/dev-clean.jsonl" "$out/texts/test-clean.jsonl" > "$out/longer-gate/text.jsonl"
gates=("distill, sampled" "distill, surer, sampled" "distill, surer" "distill, weak, sampled" "distill, weak")
for name in clean dev; do
  score $name models/before/like/final sampled "${own[@]}" --candidates 8 --sampled
  score $name models/before/like/final like "${own[@]}" --candidates 16
  score $name models/runs/weak-100/final weak-sampled "${own[@]}" --candidates 8 --sampled
  score $name models/runs/weak-100/final weak "${own[@]}" --candidates 16
done
cell clean "$out/valid-test-half.jsonl" --only "${gates[@]}"
cell dev "$out/valid-dev-half.jsonl" --seeds 20 --only "${gates[@]}"
score nothing models/before/like/final sampled "${own[@]}" --candidates 8 --sampled
cell nothing "$out/valid-test-half.jsonl" student.model=null optimizer.lr=2e-3 optimizer.min_lr=2e-4 \
  'student.architecture={"model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 512, "tie_word_embeddings": true}' \
  --only "distill, sampled" "distill, surer, sampled"
score longer models/runs/strong-100/final strong-sampled "${own[@]}" --candidates 8 --sampled
cell longer "$out/valid-test-half.jsonl" train.steps=256 --only "distill, strong, sampled" "distill, strong, surer, sampled"
for name in clean dev; do
  score $name web web "${web[@]}" --candidates 16
done
cell clean "$out/valid-test-half.jsonl" --only "distill, SmolLM2"
cell dev "$out/valid-dev-half.jsonl" --seeds 20 --only "distill, SmolLM2"
