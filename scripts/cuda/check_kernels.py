"""Compiles every CUDA kernel by NVRTC, without a GPU.

    python3 scripts/cuda/check_kernels.py [--library PATH | --install] [--arch sm_90] [--verbose]

NVRTC is looked for in its Python package, then on the library path. With --install it is installed
by pip into target/nvrtc, as pip is configured here, where none is found; later calls find it there.
Exit code 0: all compile, or there is no NVRTC (said in one line); 1: a kernel does not compile (with
the compiler's log).
"""

import argparse
import ctypes
import glob
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

KERNELS = os.path.join(os.path.dirname(__file__), "../../crates/tensor/src/cuda/kernels")
PACKAGE = "nvidia-cuda-nvrtc-cu12"
INSTALLED = os.path.join(os.path.dirname(__file__), "../../target/nvrtc")
TYPES = ["float", "bf16", "f16"]
# Attention is compiled for the head dimension of the model.
HEAD_DIMS = [6, 64, 128, 256]


def load(path):
    """NVRTC from a path, the Python package or the library path; None if there is none."""
    folders = [os.path.join(p, "nvidia/*/lib/libnvrtc.so.*") for p in [INSTALLED, *sys.path]]
    found = [f for folder in folders for f in glob.glob(folder) if "alt" not in f]
    for name in [path] if path else found + ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            # NVRTC opens its builtins by name, so they are loaded first.
            for builtins in glob.glob(os.path.join(os.path.dirname(name), "libnvrtc-builtins.so*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def install():
    """Installs NVRTC; returns why it could not."""
    print(f"installing {PACKAGE} into {os.path.relpath(INSTALLED)}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--target", INSTALLED, PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines or ["pip failed"])[-1]


def compile_one(nvrtc, name, source, options):
    """Size of the machine code, or the compiler's log."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    values = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    failed = nvrtc.nvrtcCompileProgram(program, len(options), values) != 0
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        return None, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw, ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    parser.add_argument("--install", action="store_true", help="by pip, where none is found")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--save", help="folder for the machine code")
    args = parser.parse_args()
    nvrtc, why = load(args.library), f"the package {PACKAGE} has it"
    if nvrtc is None and args.install:
        why = install()
        nvrtc = load(args.library)
    if nvrtc is None:
        print(f"skipped: NVRTC is not installed; {why}")
        return 0
    common = open(os.path.join(KERNELS, "common.cuh")).read()
    programs = []
    for path in sorted(glob.glob(os.path.join(KERNELS, "*.cu"))):
        name = os.path.basename(path)
        # The line directive keeps the numbers of messages those of the file.
        source = f'{common}\n#line 1 "{name}"\n' + open(path).read()
        types = ["float"] if name == "optimizer.cu" else TYPES
        if name == "attention_mma.cu":
            types = ["bf16", "f16"]
        dims = HEAD_DIMS if name.startswith("attention") else [None]
        if name == "attention_mma.cu":
            dims = [d for d in dims if d % 16 == 0 and d <= 128]
        for element in types:
            for dim in dims:
                options = [f"--gpu-architecture={args.arch}", "--std=c++17", f"-DSTORAGE={element}"]
                options += [f"-DHEAD_DIM={dim}"] if dim else []
                programs.append((name, element, dim, source, options))
    failures = 0
    # NVRTC compiles without Python's lock.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        compiled = threads.map(lambda it: compile_one(nvrtc, it[0], it[3], it[4]), programs)
        for (name, element, dim, _, _), (code, log) in zip(programs, compiled):
            if code is None:
                failures += 1
                print(f"{name} for {element} {dim or ''} does not compile:\n{log}")
            elif args.verbose:
                print(f"{name} {element} {dim or ''}: {len(code)} bytes")
            if code is not None and args.save:
                stem = f"{name}-{element}-{dim or 0}.cubin"
                open(os.path.join(args.save, stem), "wb").write(code)
    count = len(programs)
    print(f"{count - failures} of {count} programs compile for {args.arch}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
