#!/usr/bin/env bash
# Coverage-guided fuzzing of everything that reads bytes from a network, on stable Rust.
#
#     scripts/fuzz.sh wire 60          # one target for 60 seconds: wire, rendezvous or handshake
#
# Needs a C++ compiler (for libFuzzer). Memory is bounded: an input that makes a reader allocate
# more than 64 MiB at once is a finding, as a panic is. Findings are kept in fuzz/artifacts/.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
target=${1:?which target: wire, rendezvous or handshake}
seconds=${2:-60}
host=$(rustc -vV | sed -n 's/host: //p')
# What cargo-fuzz passes, without the sanitizers that only nightly has.
cargo run -q --release --bin seeds
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
 -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
cargo build --release --target "$host" --bin "$target"
mkdir -p "corpus/$target" "artifacts/$target"
bin=${CARGO_TARGET_DIR:-target}/$host/release/$target
"$bin" -max_total_time="$seconds" -malloc_limit_mb=64 -rss_limit_mb=1024 -max_len=65536 \
    -artifact_prefix="artifacts/$target/" -print_final_stats=1 "corpus/$target"
