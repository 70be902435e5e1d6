"""`python -m vocagno.paper`: the figures and tables of the paper, and studies of many runs."""

import sys

from vocagno.config.commands import Command, Program
from vocagno.paper import all_figures, result_figures, studies, tokenizer_figures

main: Program = Program(
    "python -m vocagno.paper",
    "Redraw the figures and tables of arXiv 2503.19123, and carry out studies of many runs.",
    {
        "overlap": Command(tokenizer_figures.add_overlap, tokenizer_figures.overlap),
        "tokens": Command(tokenizer_figures.add_tokens, tokenizer_figures.tokens),
        "granularity": Command(tokenizer_figures.add_granularity, tokenizer_figures.granularity),
        "table": Command(result_figures.add_table, result_figures.table),
        "teachers": Command(result_figures.add_teachers, result_figures.teachers),
        "gains": Command(result_figures.add_gains, result_figures.gains),
        "granularity-scores": Command(
            result_figures.add_granularity_scores, result_figures.granularity_scores
        ),
        "sweep": Command(result_figures.add_sweep, result_figures.sweep),
        "all": Command(all_figures.add_all, all_figures.all_),
        "study": Command(studies.add_study, studies.study),
    },
)
"""Runs the command line of the process, or the given words; the exit status."""

if __name__ == "__main__":
    sys.exit(main())
