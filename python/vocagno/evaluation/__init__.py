"""Mathematical benchmarks with few-shot chain of thought, graded by the paper's rules.

The rules are those of the harness whose results the paper prints (ZubinGou/math-evaluation-harness,
April 2024), reimplemented from their description.
"""

from pathlib import Path

TASKS = Path(__file__).parent / "tasks"
"""For `lm_eval --include_path`."""
