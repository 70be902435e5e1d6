"""Aligns two tokenizers in five lines; needs `vocagno[text]`.

python examples/align.py STUDENT TEACHER "a text"
"""

import sys

import vocagno

if len(sys.argv) != 4:
    sys.exit(__doc__)
student, teacher = (vocagno.TokenSpans.from_pretrained(name) for name in sys.argv[1:3])
own, other = student.encode([sys.argv[3]]), teacher.encode([sys.argv[3]])
for token, (first, stop) in zip(own.ids, vocagno.align(own.spans, other.spans), strict=True):
    print(student.token(token), [teacher.token(row) for row in other.ids[first:stop]])
