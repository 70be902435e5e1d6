"""`python -m research.paper`: Figures 1 to 3 of the paper."""

import sys

from research.paper import commands
from vocagno.config.arguments import Command, Program

main: Program = Program(
    "python -m research.paper",
    "Draw Figures 1 to 3 of arXiv 2503.19123: what tokenizers share, and how they cut a text.",
    {
        "overlap": Command(commands.add_overlap, commands.overlap),
        "tokens": Command(commands.add_tokens, commands.tokens),
        "granularity": Command(commands.add_granularity, commands.granularity),
    },
)
"""Runs the command line of the process, or the given words; the exit status."""

if __name__ == "__main__":
    sys.exit(main())
