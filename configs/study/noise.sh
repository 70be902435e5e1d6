#!/bin/bash
# The rules on the quickstart's corpus with junk: about two and a half hours on two cores.
#   bash configs/study/noise.sh
# From the folder of the project, with vocagno on the path. A killed study resumes; started twice, it is shared.
set -euo pipefail
out=runs/study/noise
python -m research.study configs/study/noise.yaml --out $out --only "naive 0" # makes the corpora
for share in 20 50 75; do
  [ -e $out/oracle-$share ] || python -m research.known_scores $out/noise-$share/train.jsonl $out/oracle-$share --kind oracle
done
python -m research.study configs/study/noise.yaml --out $out
