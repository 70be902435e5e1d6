"""Answers taken from completions, spelled alike and compared, as the paper's harness does."""

import pytest

pytest.importorskip("sympy")
pytest.importorskip("word2number")

from vocagno.evaluation.answers import NO_CHOICE, extract_answer, matches, normalize


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Final Answer: The final answer is $2x+1$. I hope it is correct.", "2x+1"),
        ("The final answer is $5$. I hope so. Or is it \\boxed{6}?", "5"),
        (r"So \boxed{\frac{1}{2}} and then \boxed{{3}}.", "{3}"),
        (r"It is \boxed 7$ or so", "7"),
        (r"open \boxed{1{2}", "1{2}"),
        ("The answer is 12 apples.", "12"),
        ("The answer is 3. No, the answer is 4", "4"),
        ("Therefore the final answer is\n   (1, 2).", "(1,2)"),
        ("He has 1,234 of them, not -5.5", "-5.5"),
        ("the answer is : 9.", "9"),
        ("no number", ""),
        ("", ""),
    ],
)
def test_what_a_completion_answers(completion, answer):
    assert extract_answer(completion, choice=False) == answer


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("Final Answer: The final answer is (B).", "B"),
        ("The right choice is d", "D"),
        ("The answer is below: (A)", "B"),
        ("I do not know.\n\nProblem:\nNext. The answer is (C)", NO_CHOICE),
        ("The answer is 5", NO_CHOICE),
        ("", NO_CHOICE),
    ],
)
def test_what_a_completion_chooses(completion, letter):
    assert extract_answer(completion, choice=True) == letter


@pytest.mark.parametrize(
    ("answer", "spelling"),
    [
        (145.0, "145"),
        ("3.0500", "3.0500"),
        (".5", "0.5"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        ("-3/4", r"\frac{-3}{4}"),
        ("1/2/3", "1/2/3"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"50\%", "50"),
        (r"\$1{,}000", "1{,}000"),
        (r"90^\circ", "90"),
        ("12 kg", "12"),
        ("5 sq m", "5"),
        ("kg", "kg"),
        (r"\text{east}", ""),
        ("twenty-three", "23"),
        ("two hundred and five", "205"),
        ("007", "7"),
        (r"x = 5", "5"),
        (r"x \in [1,2]", "[1,2]"),
        ("k=3", "3"),
        ("abc=3", "abc=3"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{array}{cc}1&2\end{array}", r"\begin{pmatrix}1&2\end{pmatrix}"),
        ("infinity", r"\infty"),
        ("1+2j", "1+2i"),
        (r"\emptyset", "{}"),
    ],
)
def test_answers_are_normalised_to_one_spelling(answer, spelling):
    assert normalize(answer) == spelling


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("5", "5", True),
        ("5", "5.0001", True),
        ("5", "5.01", False),
        ("0.5", "50", True),  # a share for a percentage, and the other way round
        ("50", "0.5", True),
        ("50%", "0.5", True),
        ("1,000", "1000", True),
        ("nan", "5", False),
        ("", "5", False),
        ("Yes", "yes", True),
        ("{3}", "3", True),
        ("(1,2)", "[1,2]", True),  # brackets are not compared
        ("(1,2)", "(1,2.0)", True),
        ("(1,2)", "(2,1)", False),
        (r"(1,\frac{2}{4})", "(1,0.5)", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2.0\end{pmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", False),
        ("y=2x+1", "2x+1=y", True),
        ("y=2x+1", "y-2x=1", True),
        ("y=2x+1", "y=2x+2", False),
        ("m=5", "5", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", r"\frac{2}{4}", True),
        (r"\frac{1}{2}", r"\frac{1}{3}", False),
        ("(x+1)^{2}", "x^2+2x+1", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("x**2", "x^2", False),  # LaTeX ends before the stars
        ("x**2", "x", True),
        ("42####42", "42", True),  # no LaTeX, and behind # nothing is typed
        ("3/4#a", "0.75", True),
        ("-(2+3)*x#", "-5x", True),
        ("1,042#1042", "1042", False),
        ("42dollars#42", "42", False),
        ("len('12')#", "2", False),
        ('"42"', "42", True),
        ("{1,2}", "{2,1}", True),
        ("{1,2}", "{1,3}", False),
        ("3x+2y=6,x>0", "3x+2y=6", True),  # what begins with an equation is one
        ("f(x)=2x+1|", "f(x)=2x+1", True),
        ("(1,2)=er", "(1,2)", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "{1,2}", False),
        ("p-q", "q-p", False),
    ],
)
def test_answers_are_equal_in_any_notation_of_one_value(answer, gold, equal):
    assert matches(answer, gold) is equal
