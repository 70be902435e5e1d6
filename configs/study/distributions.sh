#!/bin/bash
# The study of distributions across vocabularies: eight hours on two cores, two of them for the web teacher and its scores.
#   bash configs/study/distributions.sh TRAIN.jsonl VALID.jsonl TEACHER_FOLDER GGUF_FILE OUT
# From the folder of the project, with vocagno on the path, after guidance.sh or at least its first two commands. Half of each text is
# used, and half of the held-out ones; `second` is the rest of both, `longer` all of dev and of test. The learning rate and the options were chosen on dev; clean and junk are of the texts test-*, which were not looked at before.
set -euo pipefail
train=$1 valid=$2 teacher=$3 gguf=$4 out=$5
texts=$out/texts
[ -e "$texts" ] || python -m research.study_text "$train" "$valid" "$texts"
python -m research.study configs/study/guidance-models.yaml --out "$out/models"
[ -e "$out/web/tokenizer_config.json" ] && [ -e "$out/web/config.json" ] || python - "$teacher" "$gguf" "$out/web" <<'PYTHON'
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, gguf, out = sys.argv[1:]
packed = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
del packed.config.quantization_config  # with it no model is saved
model = AutoModelForCausalLM.from_config(packed.config, dtype=torch.float32)
model.load_state_dict(packed.state_dict())
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(out)
PYTHON
# The web teacher after 0.12 M tokens of other text from the same place.
awk 'NR % 40 == 1' "$texts/valid-dev.jsonl" > "$out/valid-dev-small.jsonl"
python train.py --config configs/real-text.yaml --guidance.method cpt --student.architecture null --student.model "$out/web" \
  --data.train "$texts/reference.jsonl" --data.validation "$out/valid-dev-small.jsonl" --optimizer.lr 1e-4 --optimizer.min_lr 1e-5 \
  --optimizer.warmup_steps 10 --train.steps 60 --train.eval_every 60 --train.checkpoint_every 20 --output "$out/adapted"

# Documents of a text until there are 0.75 MB.
half() { awk '{ print; bytes += length($0) } bytes > 750000 { exit }' "$1" > "$2"; }

cell() {  # NAME TEXT HELD_OUT OPTIONS...
  local folder=$out/$1
  mkdir -p "$folder"
  if [ "$1" = longer ]; then
    cat "$texts/dev-clean.jsonl" "$texts/$2.jsonl" > "$folder/text.jsonl"
  else
    half "$texts/$2.jsonl" "$folder/text.jsonl"
  fi
  if [ "$1" = second ]; then  # the documents after those of the cell `clean`
    tail -n "+$(($(wc -l < "$folder/text.jsonl") + 1))" "$texts/$2.jsonl" > "$folder/rest.jsonl"
    mv "$folder/rest.jsonl" "$folder/text.jsonl"
  fi
  vocagno score "$folder/text.jsonl" --teacher.model "$out/models/before/like/final" --teacher.context 256 --teacher.min_context 128 \
    --candidates 16 --out "$folder/like"
  vocagno score "$folder/text.jsonl" --teacher.model "$out/models/before/like/final" --teacher.context 256 --teacher.min_context 128 \
    --candidates 8 --sampled --out "$folder/sampled"
  [ -e "$folder/oracle" ] || python -m research.known_scores "$folder/text.jsonl" "$folder/oracle" --kind oracle
  if [ "$1" = dev ] || [ "$1" = second ]; then
    vocagno score "$folder/text.jsonl" --teacher.model "$out/models/before/same/final" --teacher.context 256 --teacher.min_context 128 \
      --candidates 16 --out "$folder/same"
  fi
  if [ "$1" = longer ]; then
    vocagno score "$folder/text.jsonl" --teacher.model "$out/models/runs/strong-100/final" --teacher.context 256 --teacher.min_context 128 \
      --candidates 16 --out "$folder/strong"
    vocagno score "$folder/text.jsonl" --teacher.model "$out/models/runs/strong-100/final" --teacher.context 256 --teacher.min_context 128 \
      --candidates 8 --sampled --out "$folder/strong-sampled"
  fi
  if [[ "$1" =~ ^(dev|clean|second)$ ]]; then
    vocagno score "$folder/text.jsonl" --teacher.model "$out/models/runs/weak-100/final" --teacher.context 256 --teacher.min_context 128 \
      --candidates 16 --out "$folder/weak"
  fi
  if [[ "$1" =~ ^(dev|clean|second|junk)$ ]]; then
    vocagno score "$folder/text.jsonl" --teacher.model "$teacher" --teacher.gguf_file "$gguf" --teacher.dtype float32 \
      --teacher.context 512 --teacher.min_context 128 --teacher.batch_tokens 2048 --candidates 16 --out "$folder/web"
  fi
  if [ "$1" = pages ] || [ "$1" = swap ]; then  # losses alone
    vocagno score "$folder/text.jsonl" --teacher.model "$teacher" --teacher.gguf_file "$gguf" --teacher.dtype bfloat16 \
      --teacher.context 512 --teacher.min_context 128 --teacher.batch_tokens 2048 --out "$folder/web"
  fi
  if [ "$1" = clean ] || [ "$1" = second ]; then
    vocagno score "$folder/text.jsonl" --teacher.model "$out/adapted/final" --teacher.context 512 --teacher.min_context 128 \
      --teacher.batch_tokens 2048 --candidates 16 --out "$folder/adapted"
  fi
  train "$folder" "$folder" "$3" "${@:4}"
}

train() {  # FOLDER FOLDER_OF_TABLES HELD_OUT OPTIONS...
  python -m research.study configs/study/distributions.yaml --out "$1" --to "$2" --set "data.train=$1/text.jsonl" "data.validation=$3" "${@:4}"
}

teachers() {  # NAME HELD_OUT OPTIONS...: other teachers and candidates, on the text of a cell
  train "$out/$1" "$out/$1-teachers" "$2" "${@:3}"
}

for part in dev test; do
  awk 'NR % 2' "$texts/valid-$part.jsonl" > "$out/valid-$part-half.jsonl"
done
awk 'NR % 2 == 0' "$texts/valid-test.jsonl" > "$out/valid-second.jsonl"
cell dev dev-clean "$out/valid-dev-half.jsonl" --seeds 20 --only distill "distill, 2e-4" alm "distill, 0.25" "distill, 0.75" \
  kld "distill, same ids" \
  "naive, 5e-5" "naive, 2e-4" "naive, 5e-4"
cell clean test-clean "$out/valid-test-half.jsonl" --only distill alm "distill, adapted" "alm, adapted" \
  paper "groups -1" default lines "lines and groups -1"
cell second test-clean "$out/valid-second.jsonl" --only distill alm "distill, adapted" "alm, adapted" \
  default "distill, two" kld "distill, same ids"
cell nothing test-clean "$out/valid-test-half.jsonl" student.model=null optimizer.lr=2e-3 optimizer.min_lr=2e-4 \
  'student.architecture={"model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 512, "tie_word_embeddings": true}' \
  --only distill "distill, sampled" alm "naive, 116 steps" "naive, 170 steps"
cell junk test-junk "$out/valid-test-half.jsonl" --only lines "lines, distill" "lines and groups -1" paper default oracle
cell longer test-clean "$out/valid-test-half.jsonl" train.steps=256 --only distill "distill, sampled" alm "distill, strong" "distill, strong, sampled" "naive, 300 steps"
cell large test-clean "$out/valid-test-half.jsonl" "student.model=$out/models/runs/large-100/final" --only distill "distill, sampled"
cell pages test-pages "$out/valid-test-half.jsonl" --only "lines and groups -1" "lines, distill" "lines, distill, sampled" paper default lines oracle
cell swap test-swap "$out/valid-test-half.jsonl" --only "lines and groups -1" distill "distill, sampled" paper default lines oracle
others=(distill "distill, sampled" "distill, 0.1, SmolLM2")
teachers dev "$out/valid-dev-half.jsonl" --seeds 20 --only "${others[@]}" "distill, all, SmolLM2" "distill, all, weak"
teachers clean "$out/valid-test-half.jsonl" --only "${others[@]}"
teachers second "$out/valid-second.jsonl" --only distill "distill, sampled"
teachers junk "$out/valid-test-half.jsonl" --only lines "lines, distill" "lines, distill, sampled"
# docs/study/distributions/seeds.csv: students of the quickstart with one thread, its teacher's included.
export OMP_NUM_THREADS=1
[ -e runs/quickstart/quickstart.html ] || vocagno quickstart
student() {  # NAME RUN SEED OPTIONS...
  python train.py --config "python/vocagno/quickstart/$2.yaml" --train.seed "$3" "${@:4}" --output "$out/seeds/$1 $3"
  echo "\"$1\",$3,$(tail -n 1 "$out/seeds/$1 $3/metrics.jsonl" | grep -o '"validation_loss": [0-9.]*' | cut -d' ' -f2)" >> "$out/seeds.csv"
}
echo variant,seed,held_out_loss > "$out/seeds.csv"
for seed in 0 1 2; do
  student guided guided $seed
  student "distilled, 8 sampled" distilled $seed
  student "distilled, the 16 most likely" distilled $seed --teacher.candidates 16 --teacher.sampled false
done
