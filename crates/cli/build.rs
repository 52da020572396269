//! Asks the linker of a release for a smaller binary that starts sooner: functions of equal code
//! folded into one (5 % of the binary), and packed relocations (another 5 %, a millisecond of
//! start-up).
//!
//! LLD, gold and mold fold, GNU ld cannot; packed relocations need a C library that knows them
//! (glibc 2.36). So an empty program is linked with each option and started first, and an option
//! that fails is left out. Rust promises no addresses of functions, so nothing may depend on two of
//! them being different.

#![expect(clippy::disallowed_methods, reason = "a build script reads variables, runs the compiler")]

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

const OPTIONS: &[&str] = &["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        for option in OPTIONS.iter().filter(|option| works(option) == Some(true)) {
            println!("cargo::rustc-link-arg-bins={option}");
        }
    }
}

/// Whether an empty program links with the option and, where it can run, runs; `None` where the
/// compiler cannot be run.
fn works(option: &str) -> Option<bool> {
    let folder = env::var("OUT_DIR").ok()?;
    let source = Path::new(&folder).join("empty.rs");
    std::fs::write(&source, "fn main() {}\n").ok()?;
    let target = env::var("TARGET").ok()?;
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    rustc.args(["--target", &target, "-C", &format!("link-arg={option}")]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={}", linker.to_string_lossy())]);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.args(["--out-dir", &folder]).arg(&source);
    let mut program = Command::new(Path::new(&folder).join("empty"));
    let is_foreign = env::var("HOST").ok()? != target;
    Some(succeeds(&mut rustc)? && (is_foreign || succeeds(&mut program)?))
}

/// Whether a command that prints nothing here succeeds; `None` where it cannot be run.
fn succeeds(command: &mut Command) -> Option<bool> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Some(status.ok()?.success())
}
