#!/usr/bin/env python3
"""Compares the speed of two commands on a noisy machine by taking turns.

    alternate.py [--rounds N] 'COMMAND A' 'COMMAND B'

Both commands print a figure of tokens a second: a JSON value with `tokens_per_second`, or a line
with "N tok/s". They run as A B, B A, A B ...: neighbours in time share the machine's mood, so the
ratio of a pair says more than the ratio of two averages. Printed are the pairs, the median of
their ratios, and the ratio of the best runs (the machine at its quietest).
"""

import argparse
import json
import re
import statistics
import subprocess
import sys


def tokens_per_second(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {command}\n{done.stderr[-2000:]}")
    try:
        return json.loads(done.stdout)["tokens_per_second"]
    except (ValueError, KeyError, TypeError):
        figures = re.findall(r"([\d.,]+) tok/s", done.stdout)
        if not figures:
            sys.exit(f"no tokens a second in the output of: {command}")
        return float(figures[-1].replace(",", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("a")
    parser.add_argument("b")
    args = parser.parse_args()
    pairs = []
    for number in range(args.rounds):
        if number % 2 == 0:
            a = tokens_per_second(args.a)
            b = tokens_per_second(args.b)
        else:
            b = tokens_per_second(args.b)
            a = tokens_per_second(args.a)
        pairs.append((a, b))
        print(f"A {a:8.0f}   B {b:8.0f}   A/B {a / b:.3f}", flush=True)
    ratios = [a / b for a, b in pairs]
    best = max(a for a, _ in pairs) / max(b for _, b in pairs)
    print(f"median of {len(pairs)} ratios {statistics.median(ratios):.3f}, ratio of the best {best:.3f}")


if __name__ == "__main__":
    main()
