# SmolLM2-135M-Instruct in TRL's SFTTrainer, on the tokens of conversations that Qwen2.5-0.5B-Instruct chooses, on a CPU or a GPU.
#
#   pip install trl && bash configs/recipes/sft.sh
#
# Not run as it stands: tests run it with tiny models.
set -euo pipefail
python configs/recipes/take.py HuggingFaceTB/everyday-conversations-llama3.1-2k default runs/sft/text \
  --split train_sft --megabytes 1
hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir runs/sft/student
# The student's template has to mark what the assistant writes. The model's own does not.
cp configs/recipes/chatml.jinja runs/sft/student/chat_template.jinja
python examples/guided_sft.py runs/sft/student Qwen/Qwen2.5-0.5B-Instruct runs/sft/text/train.jsonl runs/sft/guided
