"""Folders as runs leave them."""

import json


def training(step, loss, tokens=200, kept=1.0, speed=100.0):
    return {
        "step": step,
        "loss": loss,
        "kept_loss": loss,
        "kept_fraction": kept,
        "tokens": tokens,
        "tokens_per_s": speed,
        "grad_norm": 1.0,
        "lr": 1e-3,
    }


def validation(step, loss):
    return {
        "step": step,
        "validation_loss": loss,
        "validation_nats_per_byte": loss / 4,
        "validation_tokens": 7,
        "validation_seconds": 0.1,
    }


def write_run(folder, *entries, end="\n"):
    folder.mkdir(parents=True)
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + end)
    return folder


CONFIG = {
    "student": {"model": "S"},
    "teacher": {"model": "org/A", "scores": None},
    "data": {"train": "c", "cache": "x"},
    "guidance": {"method": "vocagno", "top_fraction": 0.4},
    "optimizer": {"lr": 1e-3},
    "train": {"seed": 0, "steps": 4},
    "output": "o",
    "resume": "auto",
}
