"""Aligns two tokenizers in five lines; needs `vocagno[text]`.

python examples/align.py STUDENT TEACHER "a text"
"""

import sys

import vocagno

if len(sys.argv) != 4:
    sys.exit(__doc__)
student, teacher = (vocagno.TokenSpans.from_pretrained(name) for name in sys.argv[1:3])
student_tokens, teacher_tokens = student.encode([sys.argv[3]]), teacher.encode([sys.argv[3]])
mapping = vocagno.align(student_tokens.spans, teacher_tokens.spans)
for token, (first, stop) in zip(student_tokens.ids, mapping, strict=True):
    print(student.token(token), [teacher.token(row) for row in teacher_tokens.ids[first:stop]])
