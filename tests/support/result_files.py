"""Files of results."""

import csv

STUDENTS = """model,method,GSM8K,SAT*
TinyLlama (S),-,1,2
TinyLlama-CPT,-,10,20
S + TinyLlama-CPT,KLD,12,20
S + TinyLlama-CPT,Ours,14,22
S + Qwen2.5-Math-Inst,ULD,11,17
S + Qwen2.5-Math-Inst,Ours,20,40
S + Weak,Ours,9,
S + Unknown,Ours,13,20
"""


TEACHERS = "teacher,vocabulary,GSM8K,SAT*\nQwen2.5-Math-Instruct,150K,80,90\nWeak,1K,5,\n"


CHUNKED = """guidance,chunks,GSM8K,SAT*
Random,8,1,2
Teacher,8,2,3
Teacher,16,3,4
Teacher,-,5,6
"""


def of_nine(table):
    """The same, with the paper's other columns, which are as the mean of these two."""
    header, *rows = (line.split(",") for line in table.splitlines())
    others = "MATH SVAMP ASDiv MAWPS TAB* MQA MMLU-STEM*".split()
    whole = [[*header[:-1], *others, header[-1]]]
    for *labels, first, last in rows:
        mean = str((float(first) + float(last)) / 2) if last else ""
        whole.append([*labels, first, *[mean] * len(others), last])
    return "".join(",".join(row) + "\n" for row in whole)


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
