"""The interpreter with the packages that the comparisons need."""

import os
import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDED = [ROOT / "scripts" / name / "requirements.txt" for name in ("interop", "telemetry")]


def use(python):
    """Continues in an interpreter that has the packages of requirements.txt: that of `python` or of
    LOCKSTEP_INTEROP_PYTHON, or one in target/interop, where pip installs them."""
    # Folders of this machine only: no comparison uses a network.
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    if os.environ.get("LOCKSTEP_INTEROP_INSIDE"):
        return
    python = python or os.environ.get("LOCKSTEP_INTEROP_PYTHON")
    if not python:
        folder = ROOT / "target" / "interop"
        python = folder / "bin" / "python"
        installed, needed = folder / "installed", "".join(file.read_text() for file in NEEDED)
        if not (installed.exists() and installed.read_text() == needed):
            print(f"installing the packages of both requirements.txt into {folder}", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            files = [argument for file in NEEDED for argument in ("-r", file)]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *files], check=True)
            installed.write_text(needed)
    os.environ["LOCKSTEP_INTEROP_INSIDE"] = "1"
    sys.stdout.flush()
    os.execv(python, [str(python), *sys.argv])
