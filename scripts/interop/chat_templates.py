#!/usr/bin/env python3
"""Holds the recorded chat templates against `transformers`, which renders all of them anew.

    python scripts/interop/chat_templates.py

crates/data/golden/chat_templates.json has templates, conversations, and the texts or errors of
scripts/golden/make_chat_templates.py; the tests hold lockstep to them. Here the installed version of
`transformers` must render the same texts, mark the same answers, and refuse what it refused.

Needs Python 3.10. The packages are taken from --python PATH or LOCKSTEP_INTEROP_PYTHON, or installed
by pip into target/interop.
"""

import argparse
import json
import pathlib
import sys

import interpreter

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates" / "data" / "golden" / "chat_templates.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", help="unused: the tests hold the program to the golden file")
    parser.add_argument("--python", help="an interpreter that has transformers")
    interpreter.use(parser.parse_args().python)
    sys.path.insert(0, str(ROOT / "scripts" / "golden"))
    import make_chat_templates
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    # As they are after a file of JSON.
    found = json.loads(json.dumps(make_chat_templates.golden()))
    assert recorded["templates"] == found["templates"], "the golden file has other templates"
    for number, (old, new) in enumerate(zip(recorded["cases"], found["cases"], strict=True)):
        assert old == new, f"case {number}, {old['template']}: {new} instead of {old}"
    num_errors = sum("error" in case for case in found["cases"])
    print(f"transformers {found['transformers']} renders all {len(found['cases'])} chats as recorded "
          f"by {recorded['transformers']}, {num_errors} of them refused")


if __name__ == "__main__":
    main()
