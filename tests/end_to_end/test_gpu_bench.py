"""`make gpu` at a tiny size: what its file says, and that no time is taken of a wrong answer."""

import json
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import gpu
from vocagno.guidance.chunked_loss import CrossEntropy
from vocagno.teacher.scorer import TransformersScorer

pytestmark = pytest.mark.slow


def report_of(path, monkeypatch):
    """The exit status of `make gpu SIZE=tiny`, and the file that it writes."""
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(path), "--size", "tiny"])
    return gpu.main(), json.loads(path.read_text(encoding="utf-8"))


def test_a_rehearsal_measures_right_answers_only(tmp_path, monkeypatch):
    """A wrong gradient, a wrong loss or a part that breaks down must neither get a time nor end
    with status 0: figures of wrong answers look like figures."""
    one_test = "tests/end_to_end/test_gpu.py::test_chunks_are_those_of_the_cpu"
    monkeypatch.setattr(gpu, "TESTS", (one_test,))
    status, report = report_of(tmp_path / "gpu.json", monkeypatch)
    assert status == 0
    assert {"date", "device", "torch", "cuda", "size"} < report.keys()
    assert report["size"] == "tiny"
    kinds = {part: [line["kind"] for line in report[part]] for part in gpu.PARTS}
    assert kinds == {
        "steps": ["naive", "default rule", "paper's rule", "distill"],
        "scoring": ["losses", "candidates", "plain"],
        "loss": ["torch", "chunked"],
        "tests": ["pytest -m gpu"],
    }
    for part in ("steps", "scoring", "loss"):
        for line in report[part]:
            assert line["outcome"] == "measured"
            assert line["difference"] <= line["tolerance"]
            for field in ("seconds", "tokens_per_second", "peak_mb", "ratio"):
                assert line[field] > 0, (part, line["kind"], field)
        rival = report[part][0]
        assert (rival["kind"], rival["ratio"]) == (rival["ratio_to"], 1)
    assert report["tests"][0]["outcome"] == "passed"
    assert report["tests"][0]["passed"] == 1

    loss, losses = CrossEntropy.__call__, TransformersScorer.losses

    def with_larger_gradient(self, logits_CV, place):
        parts = loss(self, logits_CV, place)
        logits_CV *= 1.01
        return parts

    def with_larger_losses(self, one_pass):
        return losses(self, one_pass) + 0.01

    def broken(size, folder):
        raise RuntimeError("no room for tests")

    monkeypatch.setattr(CrossEntropy, "__call__", with_larger_gradient)
    monkeypatch.setattr(TransformersScorer, "losses", with_larger_losses)
    monkeypatch.setitem(gpu.PARTS, "tests", broken)
    status, report = report_of(tmp_path / "wrong.json", monkeypatch)
    assert status == 1
    (line,) = report.pop("tests")
    assert line == {"outcome": "broke down", "error": "RuntimeError('no room for tests')"}
    wrong = [
        (part, line["kind"])
        for part in ("steps", "scoring", "loss")
        for line in report[part]
        if line["outcome"] == "wrong" and "seconds" not in line
    ]
    cross_entropies = [("steps", kind) for kind in kinds["steps"] if kind != "distill"]
    assert wrong == [*cross_entropies, ("scoring", "losses"), ("loss", "chunked")]
