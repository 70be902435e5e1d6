"""Corpora on disk."""

import json


def write_corpus(path, texts):
    """JSON Lines of `{"text": ...}`."""
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
