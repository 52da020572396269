"""The interpreter with the packages that the comparisons need."""

import os
import pathlib
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


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
        installed, needed = folder / "installed", (HERE / "requirements.txt").read_text()
        if not (installed.exists() and installed.read_text() == needed):
            print(f"installing the packages of requirements.txt into {folder}", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "-r",
                            HERE / "requirements.txt"], check=True)
            installed.write_text(needed)
    os.environ["LOCKSTEP_INTEROP_INSIDE"] = "1"
    sys.stdout.flush()
    os.execv(python, [str(python), *sys.argv])
