"""What a teacher chooses of one text: equal to the definitions, and shown in every form."""

import io
import json
import math
import re
import sys
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jsonargparse")
pytest.importorskip("rich")

import oracle
from corpora import write_corpus
from families import TEXTS, without_unknown_token
from pages import passage
from tiny_models import save_llama
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import prepare_rows
from vocagno.errors import InputError
from vocagno.guidance.collator import Collator, line_ends
from vocagno.models.loading import load_student
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.tokens.buckets import BucketError
from vocagno.tokens.student_tokenizer import student_tokenizer
from vocagno.training.sample_pages import guide_text
from vocagno.training.step import GuidedStudent
from vocagno.views.terminal import guidance_table

TEXT = f"{TEXTS[0]}\nZoë 🙂 <b>&"
NAMED = "tokens", "teacher_tokens"


@pytest.fixture(scope="session")
def student_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama of 128 positions and the llama-like tokenizer, with BOS."""
    folder = tmp_path_factory.mktemp("student")
    return save_llama(folder, tokenizers["llama"], max_position_embeddings=128)


@pytest.fixture
def guide(student_model, teacher_model):
    def guided(text=TEXT, *, bos=None, **options):
        teacher = TeacherConfig(model=str(teacher_model), bos=bos)
        student = StudentConfig(model=str(student_model))
        guidance = GuidanceConfig(**{"top_fraction": 0.4} | options)
        return guide_text(student, teacher, text, guidance)

    return guided


def plain_losses(folder, ids):
    """(n,) by the logits of the whole model; NaN for the first token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    nll = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    return np.array([np.nan, *nll.tolist()], np.float32)


def plain(student_model, teacher_model, how, text=TEXT):
    """Losses of both sides, the mapping, and the aggregated losses, from the definitions."""
    student, teacher = (TokenSpans(path).encode([text]) for path in (student_model, teacher_model))
    ids = [1, *student.ids.tolist(), 2]
    spans = np.concatenate([[[0, 0]], student.spans, [[0, 0]]])
    teacher_nll = plain_losses(teacher_model, teacher.ids.tolist()).astype(np.float16)
    mapping = oracle.align(spans, teacher.spans)
    aggregated = oracle.reduce(teacher_nll.astype(np.float32), mapping, how)
    return plain_losses(student_model, ids), teacher_nll, mapping, aggregated


def found(guided, name):
    """(n,) numbers of the student's tokens, NaN where there is none."""
    values = (token[name] for token in guided.as_dict()["tokens"])
    return np.array([np.nan if value is None else value for value in values], np.float64)


@pytest.mark.parametrize("how", ["max", "mean", "sum", "min"])
def test_numbers_are_those_of_plain_torch(guide, student_model, teacher_model, how):
    guided = guide(aggregation=how)
    nll, teacher_nll, mapping, aggregated = plain(student_model, teacher_model, how)
    np.testing.assert_allclose(found(guided, "student_loss"), nll, atol=1e-5)
    np.testing.assert_allclose(found(guided, "teacher_loss"), aggregated, atol=1e-5)
    np.testing.assert_allclose(found(guided, "excess"), nll - aggregated, atol=2e-5)
    ranges = [token["teacher"] or [-1, -1] for token in guided.as_dict()["tokens"]]
    assert ranges == mapping.tolist()
    losses = [token["loss"] for token in guided.as_dict()["teacher_tokens"]]
    np.testing.assert_allclose(np.array(losses, float), teacher_nll, atol=1e-3)


@pytest.mark.parametrize("top_fraction", [0.05, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
def test_the_choice_is_that_of_the_definition(
    guide, student_model, teacher_model, top_fraction, unmapped
):
    guided = guide(top_fraction=top_fraction, unmapped=unmapped)
    nll, _, _, aggregated = plain(student_model, teacher_model, "max")
    expected_weights = oracle.weights(
        nll[1:], aggregated[1:], np.ones(len(nll) - 1, bool), top_fraction, unmapped
    )
    assert found(guided, "kept").tolist() == [0, *expected_weights]
    counts = guided.counts
    assert counts["top"] == math.ceil(round(top_fraction * counts["competing"], 9))
    assert counts["kept"] == counts["top"] + counts["included"]
    assert counts["predicted"] == counts["competing"] + counts["included"] + counts["excluded"]


CUT = "frac{1}{2}\nrac{1}{2} of 17, 42.\nZoë has 3 bees"
"""Its first group has a teacher token without a loss, and one in its second line two student
tokens; the student's line breaks are tokens of their own."""

THRESHOLD = {"top_fraction": None, "max_threshold": 0.25}
RULES = {
    "quota": {"top_fraction": 0.4},
    "threshold": THRESHOLD,
    "quota with cap": {"top_fraction": 0.3, "max_threshold": 0.2},
    "groups": {"unit": "group", **THRESHOLD},
    "quota of groups": {"unit": "group", "top_fraction": 0.3, "unmapped": "exclude"},
    "noise and threshold": {**THRESHOLD, "unit": "group", "window_max_loss": 2.3},
    "noise around tokens": {"unit": "token", "window_max_loss": 2.2},
    "noise alone": {"top_fraction": None, "unit": "group", "window_max_loss": 2.3},
}


@pytest.mark.parametrize("options", RULES.values(), ids=RULES.keys())
def test_a_training_step_on_that_row_chooses_alike(
    guide, student_model, teacher_model, tmp_path, options
):
    """And each verdict follows from the numbers that are shown with it."""
    corpus = scan(str(write_corpus(tmp_path / "c.jsonl", [CUT])), tmp_path)
    cpu, tokenizer = torch.device("cpu"), student_tokenizer(str(student_model))
    teacher = TeacherConfig(model=str(teacher_model))
    configured = ConfiguredTeacher(teacher, tmp_path, cpu)
    scores = configured.scores(lambda: corpus, None, show_progress=False)
    rows, _ = prepare_rows(corpus, tokenizer, 100, tmp_path, show_progress=False)
    guided = guide(CUT, **options)
    guidance, tokens = guided.guidance, guided.as_dict()["tokens"]
    ends = line_ends(tokenizer.spans, guidance)
    batch = Collator(scores, guidance, DataConfig(train="", seq_len=100), ends)([rows[0]])
    model = load_student(StudentConfig(model=str(student_model)), None, seed=0)
    output = GuidedStudent(model, guidance)(**batch.to(cpu).inputs())
    kept = found(guided, "kept")[1:].tolist()
    assert kept == output.weights_BT[0, : len(kept)].tolist()
    assert 0 < sum(kept) < len(kept)  # the rule says something
    whys = Counter(token["why"] for token in tokens)
    assert bool(whys["noise"]) is guidance.has_line_rule
    for token in tokens:
        heard, is_kept = token["neighbours_loss"], token["kept"]
        is_noise = heard is not None and heard > guidance.window_max_loss
        if token["excess"] is None:
            assert token["why"] in ("not predicted", "included", "excluded")
            continue
        assert (token["why"] == "noise") is is_noise
        reaches = guided.threshold is None or token["excess"] > guided.threshold - 1e-6
        assert is_kept is (reaches and not is_noise)
        assert (token["why"] in ("top", "reaches", "not noise")) is is_kept


@pytest.mark.parametrize("options", [{}, {"top_fraction": 0.3}])
def test_the_excess_loss_of_a_group_is_shared_by_its_tokens(
    guide, student_model, teacher_model, options
):
    guided = guide(CUT, **{"unit": "group", **THRESHOLD} | options)
    spans, teacher_spans = (
        TokenSpans(model).encode([CUT]).spans for model in (student_model, teacher_model)
    )
    nll, excess = found(guided, "student_loss"), found(guided, "excess")
    losses = [token["loss"] for token in guided.as_dict()["teacher_tokens"]]
    for (first, stop), (start, end) in zip(*oracle.groups(spans, teacher_spans), strict=True):
        rows = slice(first + 1, stop + 1)  # <s> stands before them
        of_group = np.array(losses[start:end], float).sum() / (stop - first)
        np.testing.assert_allclose(excess[rows], nll[rows].mean() - of_group, atol=1e-4)


def test_a_group_that_is_known_in_part(guide):
    """The teacher has no loss for "frac", which is what "▁f" alone shares text with."""
    guided = guide(CUT, unit="group", **THRESHOLD)
    tokens = guided.as_dict()["tokens"]
    assert [token["lacks"] for token in tokens[1:4]] == ["unscored", "partial", "partial"]
    assert [token["why"] for token in tokens[1:4]] == ["included"] * 3
    sizes = Counter(tuple(token["teacher"]) for token in tokens if token["teacher"])
    assert max(sizes.values()) > 1  # of groups that have several student tokens
    assert guided.passage.teacher[0].text == "frac"  # shown, although no group has it
    assert all(token["lacks"] != "partial" for token in guide(CUT).as_dict()["tokens"])


def test_why_is_said_of_each_kind_of_token(guide):
    """`<s>` is first; the teacher has no BOS, hence no loss for its first token; `</s>` is last."""

    def whys(**options):
        tokens = guide("The sum of 17", **options).as_dict()["tokens"]
        return {token["token"]: (token["kept"], token["why"], token["lacks"]) for token in tokens}

    for policy, kept in (("include", True), ("exclude", False)):
        verdicts = whys(unmapped=policy)
        assert verdicts["<s>"] == (False, "not predicted", None)
        assert verdicts["▁The"] == (kept, f"{policy}d", "unscored")
        assert verdicts["</s>"] == (kept, f"{policy}d", "special")
        assert {(True, "top", None), (False, "below", None)} <= set(verdicts.values())
    ranked = whys(unmapped="mean")
    assert ranked["</s>"][1:] in (("top", "special"), ("below", "special"))
    assert whys(bos="<|endoftext|>")["▁The"][2] is None


def test_alm_shows_who_is_ahead_and_distill_where_a_token_starts(guide, teacher_model):
    """All train. `alm` asks which model is ahead, `distill` for a token that starts there."""
    text = f"{TEXT}\ndef f(a):\n    return -a\n    \n        pass"
    alm, distill = (guide(text, method=name, top_fraction=None) for name in ("alm", "distill"))
    groups = guide(text, unit="group", top_fraction=None, max_threshold=0.0).as_dict()["tokens"]
    teacher = TokenSpans(teacher_model).encode([text])
    starts = {start for start, end in teacher.spans.tolist() if start < end}
    seen = Counter()
    for token, by_alm, by_distill in zip(
        groups, *(guided.as_dict()["tokens"] for guided in (alm, distill)), strict=True
    ):
        assert by_alm["excess"] == by_distill["excess"] == token["excess"]
        if token["why"] not in ("not predicted", "included"):
            is_ahead = token["excess"] > 0
            assert by_alm["why"] == ("ahead" if is_ahead else "behind")
            assert by_distill["why"] == ("start" if token["start"] in starts else "no start")
        else:
            assert by_alm["why"] == by_distill["why"] == token["why"]
        assert by_alm["kept"] == by_distill["kept"] == (token["why"] != "not predicted")
        seen.update([by_alm["why"], by_distill["why"]])
    assert {"ahead", "behind", "start", "no start"} <= seen.keys()
    assert alm.threshold is None
    assert "method distill" in distill.html()


def test_tokenizers_that_distill_refuses(student_model, tokenizers, tmp_path):
    save_llama(tmp_path, tokenizers["word-piece"])
    student, teacher = StudentConfig(model=str(student_model)), TeacherConfig(model=str(tmp_path))
    with pytest.raises(BucketError):
        guide_text(student, teacher, TEXT, GuidanceConfig(method="distill"))


@pytest.mark.parametrize("method", ["cpt", "rho1", "chunk", "kld"])
def test_a_method_that_no_text_shows(guide, method):
    words = f"guidance.method: {method}: is not shown; vocagno, alm, distill are"
    with pytest.raises(InputError, match=words):
        guide(method=method, top_fraction=0.4 if method in ("rho1", "chunk") else None)


@pytest.mark.parametrize("text", [TEXT, " \n", "\u202e<s>a"])
def test_a_page_and_a_notebook_draw_every_token(guide, text):
    guided = guide(text)
    data, in_notebook = guided.as_dict(), guided._repr_html_()
    for drawn in (guided.html(), in_notebook):
        for side, name in zip(("student", "teacher"), NAMED, strict=True):
            assert drawn.count(f"data-{side}=") == len(data[name])
        assert "<b>&" not in drawn
    assert "<html" not in in_notebook


@pytest.mark.slow
@pytest.mark.parametrize("width", [44, 70, 80, 120])
def test_the_table_fits_the_terminal(guide, width):
    from rich.console import Console

    guided = guide()
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(guided)
    drawn = console.file.getvalue()
    lines = drawn.split("● ━ kept")[0].splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    data = guided.as_dict()
    assert sum("●" in line for line in lines) == guided.counts["kept"]
    assert sum("○" in line for line in lines) + 1 == len(data["tokens"]) - guided.counts["kept"]
    for token in data["tokens"]:
        if token["excess"] is not None:
            assert f"{token['excess']:+.2f}" in drawn


def test_long_tokens_are_shortened_in_the_table():
    from rich.console import Console

    drawn = passage("a" * 300, [(0, 300)], [(0, 299), (299, 300)])
    for width in (44, 70, 90):
        console = Console(width=width, file=io.StringIO(), highlight=False)
        console.print(guidance_table(drawn, GuidanceConfig(top_fraction=0.4), width))
        lines = console.file.getvalue().splitlines()
        assert all(len(line) <= width for line in lines)
        assert re.search(r"a⟨\+\d+⟩a+ .*━┳━  a+⟨\+\d+⟩a", lines[1])
        assert re.search(r"┗━  a ", lines[2])


@pytest.fixture
def command(student_model, teacher_model):
    return ["guidance", str(student_model), str(teacher_model)]


PAPER = ["--guidance.top_fraction", "0.4"]


def test_the_command_prints_a_table_or_json(command, capsys, guide, tmp_path):
    assert main([*command, TEXT]) == 0
    assert "predicted tokens are kept" in capsys.readouterr().out
    rule = "--guidance.top_fraction", "0.2", "--guidance.unmapped", "mean"
    assert main([*command, TEXT, "--json", *rule]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = guide(top_fraction=0.2, unmapped="mean").as_dict()
    assert printed["guidance"] == {"top_fraction": 0.2, "aggregation": "max", "unmapped": "mean"}
    for name in ("counts", "threshold", *NAMED):
        assert printed[name] == expected[name]
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    assert main([*command, "--file", str(tmp_path / "t.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == TEXT


def test_the_command_takes_every_rule(command, capsys, guide):
    rule = {"unit": "group", "top_fraction": None, "max_threshold": -1.0, "window": "line"}
    rule |= {"window_max_loss": 9.0, "unmapped": "exclude"}
    written = [
        f"--guidance.{name}={'null' if value is None else value}" for name, value in rule.items()
    ]
    assert main([*command, TEXT, "--json", *written]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["guidance"] == rule
    assert printed["tokens"] == guide(**rule).as_dict()["tokens"]
    fixed = "--guidance.max_threshold=-1", "--guidance.window_max_loss=9"
    assert main([*command, TEXT, *fixed]) == 0
    assert "Threshold: -1.000 nats" in " ".join(capsys.readouterr().out.split())
    assert main([*command, TEXT, "--guidance.unit=group", "--guidance.aggregation=sum"]) == 2
    assert "a group adds its losses up" in capsys.readouterr().err


def test_the_command_writes_a_page(command, capsys, tmp_path):
    page = tmp_path / "new" / "p.html"
    assert main([*command, TEXT, *PAPER, "--html", str(page)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(page) in printed.err
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_command_draws_a_figure(command, capsys, guide, tmp_path):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from vocagno.views.figure import draw_guidance

    figure, text = tmp_path / "new" / "g.svg", TEXT.splitlines()[0]
    assert main([*command, text, *PAPER, "--figure", str(figure)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == str(figure)
    assert figure.read_bytes().startswith(b"<?xml")
    passage = guide(text).passage
    (axes,) = draw_guidance(passage).axes
    tied = [
        token.weight > 0
        for token, (first, stop) in zip(passage.student, passage.mapping, strict=True)
        for row in range(max(0, first), stop)
        if passage.teacher[row].end > passage.teacher[row].start
    ]
    assert [line.get_linestyle() == "-" for line in axes.lines] == tied
    assert {True, False} == set(tied)


def test_a_figure_without_matplotlib(command, monkeypatch, capsys):
    for name in list(sys.modules):
        if name.startswith(("matplotlib", "vocagno.views.figure")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*command, "x", "--figure", "f.svg"]) == 2
    words = "error: needs matplotlib: pip install '.[viz]' in the checkout\n"
    assert capsys.readouterr().err == words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "text: the text is empty; give one as an argument"),
        (["a b " * 200], r"text: \d+ tokens, but the student reads at most 128"),
        (["x", "--figure", "f.pdf"], "--figure: expected a file ending in .png or .svg, got f.pdf"),
        (["a" * 101, "--figure", "f.svg"], "the text takes 101 columns; at most 100"),
        (["x", *PAPER[:1], "2"], r"guidance.top_fraction must be in \(0, 1\] or null, got 2"),
        (["x", "--teacher.bos", "<none>"], "teacher.bos: '<none>' is not a token"),
        (["x", "--teacher.gguf_file", "none.gguf"], "none.gguf"),
        (["x", "--file", "y"], "--file: the command line has a text"),
        (["x", "--student.eos", "<none>"], "student.eos: '<none>' is not a token"),
        (["x", "--context", "128"], r"--context: no such option; did you mean --teacher.context\?"),
        (["x", "--top_fraction", "1"], r"did you mean --guidance.top_fraction\?"),
        (["x", "--student_tokenizer", "t"], r"did you mean --student.tokenizer\?"),
    ],
)
def test_wrong_arguments_are_named(command, capsys, arguments, message):
    assert main([*command, *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_text_without_tokens_is_refused(guide):
    with pytest.raises(InputError, match=r"text: .* makes no token of ''"):
        guide("")


def test_a_text_that_the_teacher_cannot_read_is_refused(guide, teacher_model, tmp_path):
    """It would look as if the teacher had truncated it."""
    guided = guide("one ♞")
    save_llama(tmp_path, without_unknown_token("♞"), seed=1)
    config = TeacherConfig(model=str(tmp_path))
    with pytest.raises(InputError, match=r"texts\[0\], which begins with 'one ♞': cannot be token"):
        guide_text(StudentConfig(model=guided.student), config, "one ♞")


def test_a_model_that_is_none_is_named(command, capsys, tmp_path):
    missing = str(tmp_path / "missing")
    for student, teacher in ((missing, command[2]), (command[1], missing)):
        assert main(["guidance", student, teacher, "x"]) == 2
        assert missing in capsys.readouterr().err
