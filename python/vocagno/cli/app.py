"""The command `vocagno`."""

from vocagno.cli import alignment, evaluation, guidance, scores, stores, training
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
        "limit": Command(guidance.add_limit, guidance.limit),
        "prepare": Command(stores.add_prepare, stores.prepare),
        "score": Command(stores.add_score, stores.score),
        "bake": Command(scores.add_bake, scores.bake),
        "scores info": Command(scores.add_info, scores.info),
        "scores finish": Command(scores.add_finish, scores.finish),
        "scores verify": Command(scores.add_verify, scores.verify),
        "scores export": Command(scores.add_export, scores.export),
        "scores import": Command(scores.add_import, scores.import_),
        "eval": Command(evaluation.add_eval, evaluation.eval_),
        "report": Command(training.add_report, training.report, has_json=False),
        "train": Command(training.add_train, training.train),
        "quickstart": Command(students.add_quickstart, students.quickstart, has_json=False),
    },
    groups={"scores": "Check, describe and share a store of teacher scores."},
)
"""Runs the command line of the process, or the given words; the exit status."""
