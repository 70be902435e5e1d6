# Mathematics without the lines that are noise to Qwen2.5-0.5B, as JSON Lines for any trainer, on a laptop; here plain training reads them.
#
#   bash configs/recipes/filter.sh
#
# Not run as it stands: tests run it with tiny models. Gemma 3 270M scores 0.3 MB in four to six minutes on two cores with AMX.
set -euo pipefail
python configs/recipes/take.py HuggingFaceTB/finemath finemath-4plus runs/filter/text --megabytes 0.5
vocagno filter runs/filter/text/train.jsonl --teacher.model Qwen/Qwen2.5-0.5B --out runs/filter/clean
# What went, by file, with twenty examples to look at: runs/filter/clean/report.html.
vocagno train --config configs/recipes/laptop.yaml --guidance.method cpt --data.train runs/filter/clean/train.jsonl \
  --data.validation runs/filter/text/valid.jsonl --output runs/filter/naive
