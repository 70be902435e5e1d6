"""Mathematical benchmarks with few-shot chain of thought, graded by the paper's rules.

The rules are those of the harness whose results the paper prints (ZubinGou/math-evaluation-harness,
April 2024), reimplemented from their description.
"""
