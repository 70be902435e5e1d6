"""Takes the first documents of a data set on the hub, without downloading the rest.

python configs/recipes/take.py HuggingFaceTB/finemath finemath-4plus FOLDER --megabytes 0.5

Writes FOLDER/valid.jsonl (a tenth as much, at most a megabyte) and then FOLDER/train.jsonl. A line
has the columns that training reads: text, prompt and completion, or messages.
"""

import argparse
import json
from pathlib import Path

from datasets import load_dataset

COLUMNS = ("text", "prompt", "completion", "messages")


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("name")
    parser.add_argument("config")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--megabytes", type=float, required=True)
    options = parser.parse_args()
    if not options.megabytes > 0:
        parser.error(f"--megabytes: expected more than 0, got {options.megabytes}")
    options.folder.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset(options.name, options.config, split=options.split, streaming=True)
    records = iter(dataset)
    held_out = min(options.megabytes / 10, 1)
    # The held-out documents come first, so that more training text later holds out the same ones.
    for name, megabytes in (("valid", held_out), ("train", options.megabytes)):
        path, size = options.folder / f"{name}.jsonl", 0
        partial = path.with_suffix(".partial")  # a broken stream leaves no file that looks whole
        with partial.open("w", encoding="utf-8") as file:
            while size < megabytes * 1e6 and (record := next(records, None)) is not None:
                columns = {column: record[column] for column in COLUMNS if column in record}
                if not columns:
                    raise SystemExit(f"{options.name}: none of {COLUMNS} in {sorted(record)}")
                file.write(json.dumps(columns, ensure_ascii=False) + "\n")
                size += sum(len(str(value).encode()) for value in columns.values())
        if not size:
            raise SystemExit(f"{path}: no documents are left for it; lower --megabytes")
        partial.replace(path)
        is_short = size < megabytes * 1e6
        print(f"{path}: {size / 1e6:.2f} MB{', where the data set ends' * is_short}")


if __name__ == "__main__":
    main()
