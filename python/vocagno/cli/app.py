"""The command `vocagno`."""

from vocagno.cli import (
    alignment,
    baking,
    evaluation,
    guidance,
    limit,
    report,
    scores,
    stores,
    training,
)
from vocagno.config.arguments import Command, Program
from vocagno.quickstart import students

main: Program = Program(
    "vocagno",
    "Train a language model under a teacher whose vocabulary is another one.",
    {
        "align": Command(alignment.add_align, alignment.align),
        "overlap": Command(alignment.add_overlap, alignment.overlap),
        "describe": Command(alignment.add_describe, alignment.describe),
        "guidance": Command(guidance.add_guidance, guidance.guidance),
        "limit": Command(limit.add_limit, limit.limit),
        "prepare": Command(stores.add_prepare, stores.prepare),
        "score": Command(stores.add_score, stores.score),
        "bake": Command(baking.add_bake, baking.bake),
        "scores info": Command(scores.add_info, scores.info),
        "scores finish": Command(scores.add_finish, scores.finish),
        "scores verify": Command(scores.add_verify, scores.verify),
        "scores export": Command(scores.add_export, scores.export),
        "scores import": Command(scores.add_import, scores.import_),
        "eval": Command(evaluation.add_eval, evaluation.eval_),
        "report": Command(report.add_report, report.report, has_json=False),
        "train": Command(training.add_train, training.train),
        "quickstart": Command(students.add_quickstart, students.quickstart, has_json=False),
    },
    groups={"scores": "Check, describe and share a store of teacher scores."},
)
"""Runs the command line of the process, or the given words; the exit status."""
