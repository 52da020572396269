//! Asks the linker of a release to fold functions of equal code into one: 5 % of the binary.
//!
//! LLD, gold and mold can, GNU ld cannot; so an empty program is linked with the option first, and
//! a linker that refuses it is left alone. Rust promises no addresses of functions, so nothing may
//! depend on two of them being different.

#![expect(clippy::disallowed_methods, reason = "a build script reads variables, runs the compiler")]

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") && linker_folds() == Some(true)
    {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Whether an empty program links with the option; `None` where the compiler cannot be run.
fn linker_folds() -> Option<bool> {
    let folder = env::var("OUT_DIR").ok()?;
    let source = Path::new(&folder).join("empty.rs");
    std::fs::write(&source, "fn main() {}\n").ok()?;
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    rustc.args(["--target", &env::var("TARGET").ok()?, "-C", &format!("link-arg={FOLD}")]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={}", linker.to_string_lossy())]);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.args(["--out-dir", &folder]).arg(&source).stdout(Stdio::null()).stderr(Stdio::null());
    Some(rustc.status().ok()?.success())
}
