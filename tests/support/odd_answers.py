"""Odd answers with their verdicts by `math_verify`: those of the library alone, except where a row
says why not."""

LETTERS, COLOURS, YES = ("A", "B", "C", "D", "E"), ("red", "blue"), ("yes",)
TIMES = ("2:25 P.M.", "2:35 P.M.")

WORDS = "by default the library looks for LaTeX and numbers, but this answer is a letter or a word"
FORMULA = (
    "the library reads the letters as factors, whose order is free, and a range as a difference"
)
POINTS = "the library reads no points in a formula"
TIME = "of a time outside LaTeX, the library reads the first number"
ALONE = "a letter that stands alone comes before LaTeX without a box"

# Gold answer; the possible words; whether the answers are right; why the library alone finds the
# opposite; the answers, of which an empty one may be the last.
ODD_ANSWERS: list[tuple[str, tuple[str, ...] | None, bool, str | None, str]] = [
    (
        "C",
        LETTERS,
        True,
        None,
        r"\boxed{C} | $\boxed{C}$ | $C$ | $(C)$ | \boxed{(C)} | $\boxed{(C)}$ | \boxed{c} | "
        r"$\text{C}$ | $\text{(C)}$ | $\boxed{\text{C}}$ | $\boxed{\textbf{(C)}}$ | "
        r"$\boxed{\mathrm{C}}$",
    ),
    (
        "C",
        LETTERS,
        True,
        WORDS,
        "C | (C) | C. | **C** | (C) 3 | option C | choice (C) | C, since P(A) = 2",
    ),
    (
        "C",
        LETTERS,
        False,
        None,
        r"c | (c) | \text{C} | C) 3 | [C] | D | (D) | $\boxed{D}$ | \boxed{(A)} | d | A or C | "
        r"$\boxed{A}$, not C | F | 3 |",
    ),
    (
        "B",
        LETTERS,
        True,
        None,
        r"option A is wrong, so $\boxed{B}$ | A. No: $\boxed{B}$ | $\boxed{B}$.",
    ),
    (
        "B",
        LETTERS,
        True,
        WORDS,
        r"B because $x = 2$ | (B) because $x = 2$ | B, that is $12$ | $x=2$, B | $\boxed{12}$. "
        "The final answer is (B). I hope it is correct | $B$ as $x=3$",
    ),
    ("B", LETTERS, True, WORDS, "12. So the answer is (B)"),
    ("B", LETTERS, False, None, r"$\boxed{12}$. So the answer is (B)"),
    ("B", LETTERS, False, ALONE, "not A, thus $B$"),
    ("E", LETTERS, True, None, r"$\boxed{E}$ | $e$"),
    ("E", LETTERS, True, WORDS, "E | (E)"),
    ("E", LETTERS, False, None, r"e | A | $\boxed{A}$"),
    (
        "blue",
        COLOURS,
        True,
        None,
        r"$\text{blue}$ | \boxed{blue} | $\boxed{blue}$ | $\boxed{\text{blue}}$ | "
        r"$\boxed{\text{Blue}}$",
    ),
    ("blue", COLOURS, True, WORDS, "blue | blue. | **blue**"),
    (
        "blue",
        COLOURS,
        False,
        None,
        r"Blue | BLUE | (blue) | red | Red | $\boxed{red}$ | $\boxed{\text{red}}$ | green |",
    ),
    ("yes", YES, True, None, r"$\boxed{yes}$ | $\boxed{\text{Yes}}$"),
    ("yes", YES, True, WORDS, "yes"),
    ("yes", YES, False, None, r"Yes | YES | no | No | $\boxed{\text{No}}$ | "),
    ("2:35 P.M.", TIMES, True, None, r"2:35 P.M. | 2:35 P.M | $\boxed{2:35 P.M.}$"),
    ("2:35 P.M.", TIMES, True, POINTS, r"$\boxed{\text{2:35 P.M.}}$"),
    ("2:35 P.M.", TIMES, False, None, r"$\boxed{2:25 P.M.}$ | $\boxed{\text{2:25 P.M.}}$"),
    ("2:35 P.M.", TIMES, False, TIME, "2:35 p.m. | 2:25 P.M. | 2:35"),
    ("no", ("no", "on"), True, None, r"\boxed{no} | $no$ | $\text{no}$"),
    ("no", ("no", "on"), False, FORMULA, r"\boxed{on} | $on$"),
    ("1-3", ("1-3", "4-6"), True, None, r"\boxed{1-3} | $1-3$"),
    ("1-3", ("1-3", "4-6"), False, FORMULA, r"\boxed{4-6} | $4-6$"),
    ("P(A)", None, True, None, r"$P(A)$ | \boxed{P(A)} | $P\left(A\right)$"),
    ("P(A)", None, False, None, "$P(B)$ | $PA$"),
    ("f(B)", None, True, None, "$f(B)$"),
    ("f(B)", None, False, None, "$f(A)$ | $fB$"),
    ("n(A)+n(B)", None, True, None, "$n(A)+n(B)$ | $n(B)+n(A)$"),
    ("n(A)+n(B)", None, False, None, "$n(A)$ | $2n(A)$"),
    ("1-P(A)", None, True, None, "$1-P(A)$ | $1 - P(A)$"),
    ("1-P(A)", None, False, None, "$1-P(B)$ | $P(A)-1$ | 1-P(A)"),
    ("f(A)=3", None, True, None, "$f(A)=3$ | $3$"),
    ("f(A)=3", None, False, None, "$f(A)=4$"),
    (
        r"\frac{1}{2}",
        None,
        True,
        None,
        r"$\frac12$ | $\dfrac{1}{2}$ | $\tfrac{1}{2}$ | 1/2 | 0.5 | .5 | $.5$ | 50% | $1/2$ | "
        r"\frac{1}{2} | $\boxed{\frac{2}{4}}$ | $0.50$ | 0,5 | $\frac{1}{2}$.",
    ),
    (
        r"\frac{1}{2}",
        None,
        False,
        None,
        r"50\% | $50\%$ | $-\frac{1}{2}$ | 2 | 5 | 1/3 | one half | **1/2** | $\frac{1}{2}$ or "
        "$2$",
    ),
    (
        "50",
        None,
        True,
        None,
        r"50 | $50$ | 50.0 | $50\%$ | $\$50$ | 50 cm | $50^\circ$ | $50\text{ cm}$ | $50$ "
        r"dollars | $5\cdot 10$ | $5\times10^1$ | $x=50$",
    ),
    ("50", None, False, None, r"5000 | 0.5 | \$50 | fifty | 50,000 | -50"),
    (
        "1000",
        None,
        True,
        None,
        "1,000 | $1,000$ | $1{,}000$ | 1 000 | $1000$ | 10^3 | $10^3$ | 1000 m",
    ),
    ("1000", None, False, None, r"1e3 | $1\,000$ | $1\!,000 | 1.000 | 100"),
    (r"10\%", None, True, None, r"$10\%$ | 10\% | 10% | 10 | 10 percent"),
    (r"10\%", None, False, None, r"0.1 | $0.1$ | 1\%"),
    (r"\sqrt{8}", None, False, None, r"2.828 | $2\sqrt{3}$ | sqrt(8) | 2*sqrt(2)"),
    (r"\pi", None, True, None, r"$\pi$ | 3.14159265 | $3\pi/3$"),
    (r"\pi", None, False, None, r"3.14 | $\pi r^2$ | pi | π | $2\pi$"),
    (
        "7",
        None,
        True,
        None,
        r"7 | 7. | $7$. | \boxed{7} | **7** | 7/1 | 14/2 | 3+4 | $3+4=7$ | $x = 7$ | 7.0",
    ),
]
