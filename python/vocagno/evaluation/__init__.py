"""Mathematical benchmarks with few-shot chain of thought, scored as the paper scored them.

The rules are those of the harness whose figures the paper prints (ZubinGou/math-evaluation-harness,
April 2024), written anew from their description.
"""

from pathlib import Path

TASKS = Path(__file__).parent / "tasks"
"""For `lm_eval --include_path`."""
