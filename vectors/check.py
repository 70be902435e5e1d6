"""Checks an aligner against alignment.json: copy this file, and let `aligned` call yours.

python vectors/check.py [alignment.json]
"""

import json
import sys
from pathlib import Path

import numpy as np


def aligned(student, teacher):
    """What an aligner says of two arrays of spans, (n, 2) int64. Omit what yours lacks."""
    import vocagno

    ranges, groups = vocagno.align(student, teacher), vocagno.groups(student, teacher)
    reasons = vocagno.unmapped_reasons(student, teacher, ranges)
    return {
        "ranges": ranges,
        "student_groups": groups.student,
        "teacher_groups": groups.teacher,
        "starts": vocagno.starts(student, teacher),
        "reasons": [vocagno.Reason(reason).name.lower() for reason in reasons],
    }


def differences(path, aligned=aligned):
    """Yields a line for each answer that is not the expected one."""
    for case in json.loads(Path(path).read_text(encoding="utf-8"))["cases"]:
        label = f"{case['kind']}, {case['name']}"
        sides = [np.array(case[f"{side}_spans"]).reshape(-1, 2) for side in ("student", "teacher")]
        try:
            answers = aligned(*(side.astype(np.int64) for side in sides))
        except ValueError as error:  # how vocagno refuses spans out of order
            if "refused" not in case:
                yield f"{label}: {error}"
            continue
        if "refused" in case:
            yield f"{label}: not refused"
        for name, answer in answers.items():
            if (answer := np.asarray(answer).tolist()) != case.get(name, answer):
                yield f"{label}: {name} {answer}, expected {case[name]}"


if __name__ == "__main__":
    lines = list(differences(*(sys.argv[1:] or [Path(__file__).with_name("alignment.json")])))
    print("\n".join(lines) or "every answer is the expected one")
    sys.exit(bool(lines))
