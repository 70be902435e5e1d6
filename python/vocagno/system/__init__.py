"""Files, processes and signals."""
