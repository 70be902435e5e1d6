#!/bin/bash
# The study of rules and teachers on mathematical text: about eleven hours on two cores, two of them for the teacher's losses.
#   bash configs/study/guidance.sh TRAIN.jsonl VALID.jsonl TEACHER_FOLDER GGUF_FILE OUT
# From the folder of the project, with vocagno on the path. A killed study resumes; started twice, it is shared. The rules were
# compared on the texts dev-*; the texts test-* were not looked at before.
set -euo pipefail
train=$1 valid=$2 teacher=$3 gguf=$4 out=$5
texts=$out/texts
[ -e "$texts" ] || python -m research.study_text "$train" "$valid" "$texts"
python -m research.study configs/study/guidance-models.yaml --out "$out/models"

cell() {  # OUT TEXT PLAN_OPTIONS... -- SETTINGS...
  local folder=$out/$1 text=$texts/test-$2.jsonl scores=$out/scores/test-$2
  local options=() settings=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  settings=("data.train=$text" "data.validation=$texts/valid-test.jsonl" "teacher.scores=$scores" "$@")
  [ -e "$folder/oracle" ] || python -m research.known_scores "$text" "$folder/oracle" --kind oracle
  [ -e "$folder/random" ] || python -m research.known_scores "$text" "$folder/random" --kind random --share "$share"
  python -m research.study configs/study/guidance.yaml --out "$folder" "${options[@]}" --set "${settings[@]}"
}

rules=(--only paper "groups 0" "groups -1" lines "lines and groups -1" random)
few=(--only paper "groups -1" lines oracle)
like=("lines, like" "lines 2.5, like" "groups -1, like" "lines 2.5 and groups -1, like")
others=("groups 0, like" "paper, like" "lines, own" "groups 0, own" "lines, weak" "groups 0, weak" "lines 99 %" "lines 99 %, own" "lines 99 %, weak")
large=(student.model="$out/models/runs/large-100/final")
nothing=(
  student.model=null optimizer.lr=2e-3 optimizer.min_lr=2e-4
  'student.architecture={"model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 512, "tie_word_embeddings": true}'
)
for text in clean junk pages swap; do
  vocagno score "$texts/test-$text.jsonl" --teacher.model "$teacher" --teacher.gguf_file "$gguf" --teacher.dtype bfloat16 \
    --teacher.context 512 --teacher.min_context 128 --teacher.batch_tokens 2048 --out "$out/scores/test-$text"
done
share=0.85
cell clean clean "${rules[@]}" "${like[@]}" --
share=0.45
cell junk junk "${rules[@]}" oracle "${like[@]}" --
cell pages pages "${few[@]}" "${like[@]}" --
cell swap swap "${few[@]}" "${like[@]}" --
cell clean-teachers clean --seeds 10 11 12 --only "${others[@]}" --
cell junk-teachers junk --seeds 10 11 12 --only "${others[@]}" "lines, read junk" "groups 0, read junk" "lines 99 %, read junk" --
cell clean-nothing clean --seeds 10 11 12 --only lines "lines 2.5, like" -- "${nothing[@]}"
cell junk-nothing junk --seeds 10 11 12 --only "lines 2.5, like" oracle -- "${nothing[@]}"
cell clean-large clean --seeds 10 11 12 --only lines "lines 2.5, like" -- "${large[@]}"
cell junk-large junk --seeds 10 11 12 --only "lines 2.5, like" oracle -- "${large[@]}"
