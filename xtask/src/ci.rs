//! The checks of a change, in the order in which they are cheapest to fail.
//!
//! Each step has a name and can run alone, so that a person repeats only what failed. The first
//! failure ends the run: later steps would mostly repeat it in other words.

#![expect(clippy::disallowed_methods, reason = "a chore times itself; no run depends on it")]

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{browser, interop, mpi, shell, tidy};

struct Step {
    name: &'static str,
    run: fn() -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", run: fmt },
    Step { name: "tidy", run: tidy::run },
    Step { name: "deny", run: deny },
    Step { name: "kernels", run: kernels },
    Step { name: "clippy", run: clippy },
    Step { name: "test", run: test },
    Step { name: "mpi", run: mpi::run },
    Step { name: "model-check", run: model_check },
    Step { name: "doc", run: doc },
    Step { name: "interop", run: interop::run },
    Step { name: "browser", run: browser::run },
];

/// Runs the named steps, or all of them, and prints the time each took.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for step in select(names)? {
        shell::say(&format!("-- {}", step.name));
        let start = Instant::now();
        let outcome = (step.run)();
        let elapsed = start.elapsed();
        let seconds = elapsed.as_secs_f64();
        outcome.with_context(|| {
            let name = step.name;
            format!("step {name} failed after {seconds:.1} s (alone: cargo xtask ci {name})")
        })?;
        shell::say(&format!("-- {} ok, {seconds:.1} s\n", step.name));
        times.push((step.name, elapsed));
    }
    shell::say(&summary(&times));
    Ok(())
}

/// The requested steps, in the order of the table whatever the order of the names.
fn select(names: &[&str]) -> Result<Vec<&'static Step>> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == *name) {
            let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
            bail!("no step `{name}`; the steps are {}", known.join(", "));
        }
    }
    Ok(STEPS.iter().filter(|step| names.is_empty() || names.contains(&step.name)).collect())
}

fn summary(times: &[(&str, Duration)]) -> String {
    let parts: Vec<String> =
        times.iter().map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64())).collect();
    let total: Duration = times.iter().map(|(_, time)| *time).sum();
    format!("all steps passed in {:.1} s: {}", total.as_secs_f64(), parts.join(", "))
}

fn fmt() -> Result<()> {
    shell::run(&mut shell::cargo("fmt --all -- --check"))
}

/// Licences, bans and sources; the advisory database may be out of reach.
fn deny() -> Result<()> {
    if !shell::succeeds(&mut shell::cargo("deny --version")) {
        shell::say("   skipped: cargo-deny is not installed");
        return Ok(());
    }
    shell::run(&mut shell::cargo("deny --offline check licenses bans sources"))
}

/// Compiles the CUDA kernels without a GPU, by NVRTC, which pip installs where Python finds none.
/// A registry out of reach is no failure.
fn kernels() -> Result<()> {
    if !shell::succeeds(Command::new("python3").arg("--version")) {
        shell::say("   skipped: python3 is not installed");
        return Ok(());
    }
    shell::run(Command::new("python3").args(["scripts/cuda/check_kernels.py", "--install"]))
}

fn clippy() -> Result<()> {
    shell::run(&mut shell::cargo("clippy --workspace --all-targets -- -D warnings"))
}

/// `cargo test --workspace` in effect. With nextest each test has its own process and a time
/// limit; nextest leaves out the doc tests, so they follow. Long suites try the few cases that the
/// commit chooses.
fn test() -> Result<()> {
    let commit = shell::capture(Command::new("git").args(["rev-parse", "HEAD"]));
    let commit = commit.unwrap_or_default();
    let run = |args: &str| shell::run(shell::cargo(args).env("LOCKSTEP_COMMIT", commit.trim()));
    if shell::succeeds(&mut shell::cargo("nextest --version")) {
        run("nextest run --workspace --profile ci")?;
        run("test --doc --workspace")
    } else {
        run("test --workspace")
    }
}

/// Every interleaving of the lock-free protocols, with loom's atomics in place of the real ones.
fn model_check() -> Result<()> {
    shell::run(&mut shell::cargo(
        "test -p lockstep-tensor --features model-check --test model_check",
    ))?;
    shell::run(&mut shell::cargo("test -p lockstep-comm --lib flags"))
}

fn doc() -> Result<()> {
    let mut command = shell::cargo("doc --workspace --no-deps");
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(steps: &[&Step]) -> Vec<&'static str> {
        steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn no_name_means_every_step() {
        assert_eq!(
            names(&select(&[]).unwrap()),
            [
                "fmt",
                "tidy",
                "deny",
                "kernels",
                "clippy",
                "test",
                "mpi",
                "model-check",
                "doc",
                "interop",
                "browser"
            ]
        );
    }

    #[test]
    fn named_steps_run_in_the_order_of_the_table() {
        assert_eq!(names(&select(&["tidy", "fmt"]).unwrap()), ["fmt", "tidy"]);
    }

    #[test]
    fn an_unknown_step_is_refused_before_any_step_runs() {
        let error = select(&["fmt", "lint"]).err().unwrap().to_string();
        assert_eq!(
            error,
            "no step `lint`; the steps are fmt, tidy, deny, kernels, clippy, test, mpi, \
             model-check, doc, interop, browser"
        );
    }

    #[test]
    fn the_summary_adds_the_times() {
        let times = [("fmt", Duration::from_millis(500)), ("doc", Duration::from_secs(2))];
        assert_eq!(summary(&times), "all steps passed in 2.5 s: fmt 0.5 s, doc 2.0 s");
    }
}
