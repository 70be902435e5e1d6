"""Small benchmarks of our own in the layouts of the real ones."""

import json

RECORDS = {
    "gsm8k": [
        {"question": "What is 1 + 1?", "answer": "1 + 1 = 2.\n#### 2"},
        {"question": "What is 1000 + 1?", "answer": "It is\n#### 1,001"},
    ],
    "math_oai": [
        {"problem": "Halve $1$.", "solution": r"It is $\boxed{\frac12}$."},
        {"problem": "Name a point.", "solution": r"So $\boxed{\left(0, 1\right)}$."},
    ],
    "gsm_hard": [{"input": "What is 0.5 less 1?", "code": "", "target": -0.5}],
    "svamp": [{"Body": "There are 2 pens", "Question": "How many pens?", "Answer": 2.0}],
    "asdiv": [
        {"body": "Ann has 2 pens.", "question": "How many pens?", "answer": "2 (pens)"},
        {"body": "Ann has a pen.", "question": "Has she one?", "answer": "Yes"},
    ],
    "mawps": [{"input": "What is 3 + 4 ?", "target": 7.0, "idx": 5}],
    "tabmwp": [
        {
            "question": "Which?",
            "choices": ["red", "blue"],
            "answer": "blue",
            "table_title": "Pens",
            "table": "red | 1\nblue | 2",
            "ans_type": "extractive_text",
        },
        {
            "question": "How much?",
            "choices": None,
            "answer": "1,000",
            "table_title": None,
            "table": "a | 1",
            "ans_type": "integer_number",
        },
        {
            "question": "What share?",
            "choices": None,
            "answer": "3/4",
            "table_title": None,
            "table": "a | 1",
            "ans_type": "decimal_number",
        },
    ],
    "mathqa": [
        {"problem": "what is 1 + 1 ?", "options": "a ) 2 , b ) 3 , c ) 1 , 000", "correct": "a"},
        {"problem": "what is 2 ?", "options": "['a ) 1', 'b ) 2']", "correct": "b"},
    ],
    "mmlu_stem": [{"question": "What is 1 + 1?", "choices": ["1", "2", "3", "4"], "answer": 1}],
    "sat_math": [
        {"question": "What is 1 + 1?", "options": "A) 1 B) 2 C) 3 D) 4", "Answer": "B"},
        {"question": "What is 2?", "options": "A. 1 B. 2", "Answer": "B"},
    ],
    "math": [{"problem": "One?", "solution": r"$\boxed{1}$", "level": "1", "idx": 0}],
}

_EXAMPLE = {
    "gsm8k": "Question: What is 0 + 1?\nAnswer: The answer is 1.",
    "minerva_math": "Problem:\nWhat is $1$?\nSolution:\nFinal Answer: The final answer is $1$.",
    "math": "Problem:\nWhat is $2$?\nSolution:\nThe answer is 2.",
    "mathqa": "Problem:\nwhat?\n(A) 1\nSolution:\nThe final answer is (A).",
    "mmlu_stem": "Problem:\nWhat?\n(A) 1\nSolution:\nThe final answer is (A).",
}
_SHOTS = {"gsm8k": 8, "minerva_math": 4, "math": 5, "mathqa": 4, "mmlu_stem": 4}
EXAMPLES = {name: "\n\n\n".join([text] * _SHOTS[name]) for name, text in _EXAMPLE.items()}


def write_benchmarks(folder):
    """All of them, each with as many equal worked examples as its prompts have."""
    for name, records in RECORDS.items():
        write_benchmark(folder, name, records)
    prompts = folder / "prompts" / "cot"
    prompts.mkdir(parents=True)
    for name, text in EXAMPLES.items():
        (prompts / f"{name}.md").write_text(text + "\n")
    return folder


def write_benchmark(folder, name, records):
    path = folder / name / "test.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def right(benchmark, item, stated=None):
    """A completion that gives the gold answer in the way of the worked examples.

    Args:
        stated: the answer as the file writes it; by default as the item was read.
    """
    stated = item.stated if stated is None else stated
    if benchmark.choice:
        return f"Because.\nFinal Answer: The final answer is ({stated})."
    if benchmark.problem:
        return f"Final Answer: The final answer is ${stated}$. I hope it is correct."
    return f"So it is. The answer is {stated.removesuffix('.')}."
