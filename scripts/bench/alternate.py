#!/usr/bin/env python3
"""Compares the speed of two commands on a noisy machine by taking turns.

    alternate.py [--rounds N] 'COMMAND A' 'COMMAND B'

Both commands print a figure of tokens a second: a JSON value with `tokens_per_second`, or a line
with "N tok/s". They run as A B, B A, A B ...: neighbours in time share the machine's mood, so the
ratio of a pair says more than the ratio of two averages. Printed are the pairs, the median of
their ratios, the ratio of the best runs and, where both commands print `step_seconds`, that of
their best steps (the machine at its quietest).
"""

import argparse
import json
import re
import statistics
import subprocess
import sys


def measure(command):
    """Tokens a second, and the shortest step where there is one."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {command}\n{done.stderr[-2000:]}")
    try:
        figures = json.loads(done.stdout)
        return figures["tokens_per_second"], min(figures.get("step_seconds", []), default=None)
    except (ValueError, KeyError, TypeError):
        figures = re.findall(r"([\d.,]+) tok/s", done.stdout)
        if not figures:
            sys.exit(f"no tokens a second in the output of: {command}")
        return float(figures[-1].replace(",", "")), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("a")
    parser.add_argument("b")
    args = parser.parse_args()
    pairs, steps = [], []
    for number in range(args.rounds):
        if number % 2 == 0:
            a, a_step = measure(args.a)
            b, b_step = measure(args.b)
        else:
            b, b_step = measure(args.b)
            a, a_step = measure(args.a)
        pairs.append((a, b))
        steps.append((a_step, b_step))
        print(f"A {a:8.0f}   B {b:8.0f}   A/B {a / b:.3f}", flush=True)
    ratios = [a / b for a, b in pairs]
    best = max(a for a, _ in pairs) / max(b for _, b in pairs)
    print(f"median of {len(pairs)} ratios {statistics.median(ratios):.3f}, ratio of the best {best:.3f}")
    if all(a and b for a, b in steps):
        a, b = (min(column) for column in zip(*steps))
        print(f"best steps {a:.3f} s and {b:.3f} s, ratio of their speeds {b / a:.3f}")


if __name__ == "__main__":
    main()
