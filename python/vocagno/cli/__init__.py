"""The commands of `vocagno`. Each has a function that adds its options and one that runs it.

The docstring of the first one is the text of `--help`. Modules that are slow to import are imported
in the function that runs the command, so that `--help` and wrong options answer at once.
"""
