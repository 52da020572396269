//! The project's chores, as `cargo xtask <command>`: no tool to install but cargo itself.
//!
//! *Layout*
//! - `budget`: measured times and sizes against their limits.
//! - `ci`: the checks every change must pass, each runnable alone by name.
//! - `tidy`: what the compiler and clippy cannot see: crate edges, lengths, links, fresh pages.
//! - `soak`: the suites that are too long for every change.
//! - `reference`: the generated pages of the book.
//! - `golden`: how the files recorded from PyTorch are made again.
//! - `interop`: ours against Hugging Face's transformers.
//! - `browser`: the dashboard in Chromium; `mpi`: tests under Open MPI and MPICH; `debian`: the
//!   packages that both need.
//! - `shell`: the one place that starts other programs.

mod browser;
mod budget;
mod ci;
mod debian;
mod golden;
mod interop;
mod mpi;
mod reference;
mod shell;
mod soak;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  ci [STEP...]   the checks of a change, in order: fmt, clippy, test, doc, tidy, interop
                 with step names, only those: cargo xtask ci fmt tidy
  tidy           vocabulary, circles, crate edges, lengths, module docs, links, generated pages
  reference      write the generated pages of docs/book/reference
  budget [NAME...] [--write]
                 measure build time, binary size, test time and incremental check against
                 xtask/budget.toml; --write keeps the table in docs/book/internals/budget.md
  soak [ARG...]  the long suites, in release; arguments go to the test binary
  golden [--python PATH] [--check]
                 make the files recorded from PyTorch again, or check them;
                 without --python: how to prepare a Python that can";

/// A failed chore is news for a person, not a crash: the chain of reasons and no backtrace.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            shell::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[&str]) -> Result<()> {
    match args {
        ["ci", steps @ ..] => ci::run(steps),
        ["tidy"] => tidy::run(),
        ["reference"] => reference::run(),
        ["budget", args @ ..] => budget::run(args),
        ["soak", test_args @ ..] => soak::run(test_args),
        ["golden", options @ ..] => golden::run(options),
        [] | ["help" | "-h" | "--help"] => {
            shell::say(USAGE);
            Ok(())
        }
        [unknown, ..] => bail!("cannot run `{}`\n\n{USAGE}", unknown.escape_default()),
    }
}
