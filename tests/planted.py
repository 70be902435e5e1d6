"""Plants silent faults, one at a time, and runs the tests that should see each: `make planted`.

A fault that no test sees is a hole in the tests: add an assertion. A fault whose text is gone from
the package needs a new text: exit status 1 in both cases. Faults are planted in a copy of the tree.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_NOT_COPIED = (".git", ".venv*", "target", "runs", "dist", ".cache", "__pycache__", ".*_cache")
_SECONDS = 600
"""A fault may make tests hang, which is seen, too."""


class Fault(NamedTuple):
    file: str
    """The module, below python/vocagno. If the text moved, the only module that has it."""
    old: str
    new: str
    effect: str
    tests: str
    """The file below tests whose quick tests should see it (its folder if the file is gone), or
    one test in it, which may be slow."""


FAULTS = [
    Fault("alignment/arrays.py", "(np.cumsum(sizes) - sizes), sizes)", "np.cumsum(sizes), sizes)",
          "rows of ranges begin a range too early", "alignment/test_mapping.py"),
    Fault("alignment/segments.py", "result_N / count_N", "result_N / (stop_N - first_N)",
          "a mean counts tokens without a loss", "alignment/test_reduction.py"),
    Fault("alignment/mapping.py", "sums_in(~is_finite, ranges) == 0",
          "sums_in(~is_finite, ranges) >= 0",
          "a group with a loss of NaN has an excess loss", "alignment/test_mapping.py"),
    Fault("tokens/id_texts.py", "boundaries - boundaries[0], self", "boundaries, self",
          "a slice of texts keeps the boundaries of the whole", "tokens/test_id_texts.py"),
    Fault("tokens/offset_spans.py", "characters[spans[rows, 1] - 1, 1]",
          "characters[spans[rows, 1] - 1, 0]",
          "a token ends where its last character begins", "tokens/test_hard_cases.py"),
    Fault("tokens/token_spans.py", '{self._definition}{read_as_text}"', '{self._definition}"',
          "a fingerprint does not tell how special tokens are read", "tokens/test_copies.py"),
    Fault("tokens/token_spans.py", 'b"\\n" in piece', 'piece == b"\\n"',
          "tokens of more than a line break end no line", "tokens/test_token_spans.py"),
    Fault("tokens/id_texts.py", "starts_segment[first + with_text]", "starts_segment[with_text]",
          "dummy prefixes are looked for in the first text only", "integrations/test_credit.py"),
    Fault("guidance/bucket_loss.py", "[place] < entropy_C", "[place] > entropy_C",
          "a teacher counts where it is less sure", "guidance/test_methods_matching.py"),
    Fault("data/store/shards.py", "sizes >= _ESCAPE", "sizes > _ESCAPE",
          "a token of 255 bytes is not escaped", "data/test_shards.py"),
    Fault("data/rows.py", "replace(local_row, documents=local_row.documents +",
          "replace(local_row, documents=local_row.documents + 0 *",
          "the second corpus has the documents of the first",
          "training/test_mixtures.py::test_rows_and_their_scores_belong_together"),
    Fault("data/corpus.py", "[_INDEX_VERSION, size, s.identity()]",
          "[_INDEX_VERSION, s.identity()]",
          "cuts of another size come from the cache", "data/test_corpus.py"),
    Fault("data/rows.py", "tokens.spans[rows][:, 1] > prompt",
          "tokens.spans[rows][:, 0] >= prompt",
          "the token across the end of a prompt is not learnt", "data/test_format.py"),
    Fault("data/store/building.py", "if all(other.entry == note.entry for", "if all(True for",
          "a shard that was made twice with different bytes is trusted", "data/test_building.py"),
    Fault("data/rows.py", "range(0, len(stream.ids) - 1, seq_len)",
          "range(0, len(stream.ids) - seq_len, seq_len)",
          "the last row of a shard is dropped", "data/test_format.py"),
    Fault("models/losses.py", "nll_BT.masked_fill(weights_BT == 0, 0.0)", "nll_BT",
          "an infinite loss of a dropped token makes the sum NaN", "models/test_losses.py"),
    Fault("models/batching.py", "index * width + place", "place",
          "losses are taken from the first row of a batch", "models/test_batching.py"),
    Fault("models/batching.py", "same_BTT & (place_T[:, None] >=",
          "same_BTT | (place_T[:, None] >=",
          "isolated documents see the text before them", "models/test_batching.py"),
    Fault("models/batching.py", "window is None or window >= length",
          "window is None or window > 0",
          "a mask may override a sliding window", "models/test_batching.py"),
    Fault("teacher/windows.py", "len(self.prefix) + cut.score_from", "cut.score_from",
          "losses of windows belong to the token before", "teacher/test_configured.py"),
    Fault("teacher/windows.py", "stop - min_context, stop", "stop - min_context + 1, stop",
          "later windows have a token less of context", "teacher/test_configured.py"),
    Fault("teacher/score_store.py", "(self._hashes[places] == words).all(1)",
          "(self._hashes[places] == words).any(1)",
          "half of a hash is enough to find scores", "teacher/test_score_store.py"),
    Fault("teacher/live.py", "first_asked_N < stop_N", "first_asked_N <= stop_N",
          "the partner of a token is the teacher token after its range",
          "guidance/test_methods_distillation.py"),
    Fault("teacher/configured.py", '"context": config.context,', '"context": 0,',
          "scores of another context are taken for these", "teacher/test_configured.py"),
    Fault("guidance/excess_rule.py", "(products + share.denominator - 1) //", "products //",
          "the number of kept tokens is rounded down", "guidance/test_excess_rule.py"),
    Fault("guidance/excess_rule.py", "(excess_ST, -entropy_ST", "(excess_ST, entropy_ST",
          "tokens of which the teacher is unsure are preferred", "guidance/test_excess_rule.py"),
    Fault("guidance/collator.py", "heads if self.isolate else heads[:1]", "heads[:1]",
          "the first token of a document is learnt from another one", "guidance/test_collator.py"),
    Fault("guidance/comparison.py",
          "ends_early = teacher[last, 1] <", "ends_early = teacher[last, 1] >",
          "a group that the teacher saw a part of is compared", "guidance/test_comparison.py"),
    Fault("guidance/bucket_targets.py", "is_asked_nK &= ids_nK !=", "ids_nK !=",
          "the candidate that followed is refused like others", "guidance/test_bucket_targets.py"),
    Fault("guidance/line_rule.py", "/ (size_BT + SMOOTHING_BYTES)", "/ size_BT",
          "short lines with a hard token are noise", "guidance/test_line_rule.py"),
    Fault("guidance/lines.py", "(rest_bytes_U > 0) & (mean_U > max_loss)", "mean_U > max_loss",
          "a line of one token is filtered", "guidance/test_lines.py"),
    Fault("guidance/lines.py", "2 * sums(bytes_U * is_dropped_U)", "sums(bytes_U * is_dropped_U)",
          "no line is filtered", "guidance/test_lines.py"),
    Fault("integrations/filtering.py", "scores is NOT_SCORED and text", "scores.missing and text",
          "a document that the teacher could not read counts as missing",
          "integrations/test_filtering.py"),
    Fault("guidance/collator.py", "generator=torch.Generator()", "generator=None",
          "loading changes the random state of training", "guidance/test_collator.py"),
    Fault("guidance/methods/distillation.py",
          "torch.where(partner_C >= 0, distance_C, 0.0)", "distance_C",
          "tokens without a partner have a distance", "guidance/test_methods_distillation.py"),
    Fault("training/step.py", "counts.predicted if is_mean_of_all", "counts.kept if is_mean_of_all",
          "guidance.normalize is ignored",
          "training/test_step.py::test_a_step_is_divided_by_the_tokens_that_normalize_names"),
    Fault("training/sampler.py", "[self.seed, epoch, self.corpus]", "[self.seed, self.corpus]",
          "every epoch has the same order", "training/test_sampler.py"),
    Fault("training/checkpoint.py", "self.accelerator.step = 0", "self.accelerator.step += 0",
          "a resumed run continues the count of micro-batches",
          "training/test_main.py::test_going_on_with_another_cut_of_the_steps"),
    Fault("training/validation.py", "torch.random.fork_rng(devices)", "torch.no_grad()",
          "benchmarks change the random state of training",
          "training/test_validation.py::test_the_run_is_bit_by_bit_the_same"),
    Fault("training/step.py", "config.lr * (step + 1) / config.warmup",
          "config.lr * step / config.warmup",
          "the first step of a warm-up learns nothing", "training/test_step.py"),
    Fault("integrations/token_files.py", "== self._eos_id) + first + 1",
          "== self._eos_id) + first",
          "a document begins with the separator of the one before",
          "integrations/test_token_files.py"),
    Fault("integrations/credit.py", "share / whole[number]", "share",
          "credits of a group do not add up to the teacher's sum", "integrations/test_credit.py"),
    Fault("integrations/columns.py",
          "torch.where(padded_BT >= 0, padded_BT + first_B1, padded_BT)", "padded_BT",
          "groups of different examples have the same numbers", "integrations/test_columns.py"),
    Fault("evaluation/summary.py", "max(1, count - 1)", "max(1, count)",
          "standard errors of few questions are too small",
          "evaluation/test_summary.py::test_averages"),
    Fault("system/files.py", 'state.update(len(data).to_bytes(8, "little"))', 'state.update(b"")',
          "a hash does not tell two parts from one", "system/test_files.py"),
    Fault("models/weights.py", 'missing = report["missing_keys"]', "missing: list[str] = []",
          "weights that a file lacks are random", "models/test_weights.py"),
    Fault("models/weights.py", '{key for key in report["unexpected_keys"] if not',
          '{key for key in report["unexpected_keys"] if key and',
          "weights that a model does not have are skipped", "models/test_weights.py"),
    Fault("models/weights.py", "if find_adapter_config_file(name) is not None:", "if False:",
          "an adapter beside the weights is applied unasked", "models/test_weights.py"),
    Fault("system/files.py", "if start.startswith(prefix):", "if start == prefix:",
          "a Git LFS pointer is read as the file", "tokens/test_tokenizer_checks.py"),
    Fault("evaluation/benchmarks.py", "stated = in_box(after_box) if box",
          "stated = extract_answer(solution, choice=False) if box",
          "a gold answer is normalised before it is graded",
          "evaluation/test_benchmarks.py::test_what_is_in_the_box_is_graded_by_math_verify"),
    Fault("evaluation/judge.py", 'if set(words) <= set("ABCDE"):', "if not words:",
          "a choice in brackets is no choice",
          "evaluation/test_judge.py::test_odd_answers_get_the_verdict_of_the_library"),
    Fault("evaluation/_prompted.py", "return list(full[start + len(bare) :])", "return []",
          "prompts end in the end of a text",
          "evaluation/test_prompted.py::test_no_prompt_of_a_benchmark_ends_in_an_eos"),
    Fault("tokens/buckets.py", "if fingerprint != spans.fingerprint:",
          "if not fingerprint:",
          "a file of buckets of other tokenizers is used", "tokens/test_buckets.py"),
    Fault("guidance/batch.py", 'if options.pop("buckets", None) != (',
          'if options.pop("buckets", None) and not (',
          "columns over the buckets of other tokenizers train",
          "integrations/test_columns.py"),
    Fault("teacher/scorer.py", "logits_CV[:, : self._num_ids]", "logits_CV",
          "ids that pad the head are candidates", "teacher/test_configured.py"),
    Fault("tokens/spelling.py", "elif written[piece] != index:", "elif written[piece] < 0:",
          "a byte and its letter share the probability of the letter", "tokens/test_spelling.py"),
    Fault("models/losses.py", "sum_R if known_RW.shape == block_RW.shape else",
          "sum_R if known_RW.shape else",
          "the entropy of a padded head has a wrong denominator", "models/test_losses.py"),
    Fault("teacher/configured.py", 'option, made_from.get("tokenizer", "none")',
          "option, self.spans.fingerprint",
          "scores of another tokenizer are accepted", "teacher/test_configured.py"),
    Fault("training/inputs.py", "in stores if config.guidance.needs_entropy else []", "in []",
          "a store without entropies is taken for one with them",
          "training/test_further_teachers.py::test_teachers_that_do_not_fit_are_refused"),
    Fault("evaluation/benchmark_files.py", "            examples.check(benchmark)",
          "            pass", "worked examples of another benchmark are shown",
          "evaluation/test_benchmarks.py"),
    Fault("evaluation/judge.py", 'completion = completion.removesuffix(".")',
          r'completion = _BRACKETED.sub(r"\1", completion)',
          "brackets of formulas are stripped from completions",
          "evaluation/test_judge.py::test_odd_answers_get_the_verdict_of_the_library"),
]  # fmt: skip


def planted(root: Path, fault: Fault) -> tuple[Path, str] | None:
    """The module that has a fault's text once, and its source with the fault; None if none has."""
    package = root / "python" / "vocagno"
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    counts = {path: source.count(fault.old) for path, source in sources.items()}
    path = package / fault.file
    if counts.get(path) != 1:
        holders = [path for path, count in counts.items() if count]
        if len(holders) != 1 or counts[holders[0]] != 1:
            return None
        path = holders[0]
    return path, sources[path].replace(fault.old, fault.new)


def run_tests(root: Path, tests: Collection[str], *options: str) -> tuple[int, str]:
    """The exit status of pytest (0: passed, 1: failed, others: could not run), and what it says of
    the first test that failed, or of all."""
    paths, name = {"tests"}, ""
    if tests:
        parts = [test.partition("::") for test in tests]
        names = [Path("tests", file) for file, _, _ in parts]
        paths = {path if (root / path).exists() else path.parent for path in names}
        name = parts[0][2]
    chosen = ["-k", name] if name else ["-m", "not slow and not gpu"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb", "short"]
    # Python takes a module of the same size and second for the one that it has compiled.
    variables = {"PYTHONPATH": str(root / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.run(
            [*command, *chosen, *options, *sorted(map(str, paths))],
            cwd=root,
            env={"OMP_NUM_THREADS": "1", **os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1, "timed out"
    lines = process.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return process.returncode, (failed or lines[-1:] or [process.stderr[-300:]])[0]


def carry_out(root: Path, number: int, all_tests: bool) -> bool:
    """Plants a fault in a copy of the tree; whether the tests see it."""
    fault, began = FAULTS[number - 1], time.monotonic()
    place = planted(root, fault)
    assert place is not None  # `main` has looked
    path, source = place
    whole = path.read_text(encoding="utf-8")
    path.write_text(source, encoding="utf-8")
    try:
        status, line = run_tests(root, [] if all_tests else [fault.tests], "-x")
    finally:
        path.write_text(whole, encoding="utf-8")
    result = {0: "SURVIVED", 1: "caught"}.get(status, "ERROR")
    seconds = time.monotonic() - began
    print(f"{number:3} {result:8} {seconds:4.0f} s  {fault.effect}\n      {line[:150]}", flush=True)
    return status == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the faults, and run nothing")
    numbers = range(1, len(FAULTS) + 1)
    parser.add_argument(
        "--only", type=int, nargs="+", choices=numbers, metavar="N", help="only these faults"
    )
    parser.add_argument("--all-tests", action="store_true", help="run all quick tests for each")
    arguments = parser.parse_args()
    chosen = arguments.only or list(numbers)
    places = {number: planted(ROOT, FAULTS[number - 1]) for number in chosen}
    if arguments.list:
        for number, place in places.items():
            where = place[0].relative_to(ROOT / "python") if place else "no such text"
            print(f"{number:3} {where}: {FAULTS[number - 1].effect}")
    if lost := [number for number, place in places.items() if place is None]:
        print(f"the texts of these faults are in no module, or not once: {lost}", file=sys.stderr)
        return 1
    if arguments.list:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "vocagno"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        files = {FAULTS[number - 1].tests for number in chosen}
        quick = [test for test in files if "::" not in test]
        for tests in filter(None, [quick, *([test] for test in files - {*quick})]):
            status, line = run_tests(copy, tests)
            print(f"without a fault: {line}", flush=True)
            if status != 0:
                return 1
        unseen = [number for number in chosen if not carry_out(copy, number, arguments.all_tests)]
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} faults caught; not: {unseen or 'none'}")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
