"""Bakes streams parallel to a token file, for trainers that read tokens from a file.

`whole_file` bakes a file, by any number of processes; `documents` computes the streams of some of
its documents, and `parts` writes them so that a killed process loses little. What they write is
read by `vocagno.integrations.baked_files`, which needs NumPy only.
"""
