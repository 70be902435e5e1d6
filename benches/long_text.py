"""Time and peak memory of the spans of one long line.

python benches/long_text.py TOKENIZER [--bytes 100000000]
"""

import argparse
import resource
import time

from vocagno import TokenSpans

LINE = "The quick brown fox, x = 12; "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("--bytes", type=int, default=100_000_000)
    options = parser.parse_args()
    spans = TokenSpans(options.tokenizer)
    text = (LINE * (options.bytes // len(LINE) + 1))[: options.bytes]
    start = time.perf_counter()
    tokens = spans.encode([text])
    seconds = time.perf_counter() - start
    assert tokens.spans[-1, 1] == options.bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    source = "ids" if tokens.proved[0] else "offsets"
    print(f"{len(tokens.ids):,} tokens, spans from {source}, {seconds:.1f} s, peak {peak:.2f} GB")


if __name__ == "__main__":
    main()
