//! Budgets of time and size: `xtask/budget.toml` holds the limits, this chore measures them.
//!
//! Builds start from empty target folders below `target/budget` and use two jobs, so that a
//! figure means the same on a larger machine. The last table is kept in
//! `docs/book/internals/budget.md`, with its date, machine and commit.

#![expect(clippy::disallowed_methods, reason = "a chore times itself and writes one page")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::shell;

const LIMITS: &str = include_str!("../budget.toml");
const PAGE: &str = "docs/book/internals/budget.md";
/// The file that the incremental check edits, and the item that it adds for the time of the check:
/// a change of the public interface, so that every crate above is checked again.
const EDITED: &str = "crates/parallel/src/lib.rs";
const PROBE: &str =
    "\n/// Added by `cargo xtask budget`.\n#[doc(hidden)]\npub fn budget_probe() {}\n";
const BEGIN: &str = "<!-- cargo xtask budget -->";
const END: &str = "<!-- end -->";

/// One budget: its name in the file of limits, what it measures, and how.
struct Budget {
    name: &'static str,
    title: &'static str,
    measure: fn(&Path) -> Result<f64>,
}

const BUDGETS: &[Budget] = &[
    Budget {
        name: "release_build_seconds",
        title: "clean `cargo build --release`",
        measure: release_build,
    },
    Budget { name: "binary_bytes", title: "binary as built", measure: binary_size },
    Budget {
        name: "incremental_check_seconds",
        title: "`cargo check --workspace` after an edit of one file of `parallel`",
        measure: incremental_check,
    },
    Budget {
        name: "test_seconds",
        title: "`cargo test --workspace` on a clean clone",
        measure: test_suite,
    },
];

/// Measures the named budgets, or all; `--write` updates the page. Fails over a limit.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let write = args.contains(&"--write");
    let names: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--write").collect();
    for name in &names {
        if !BUDGETS.iter().any(|budget| budget.name == *name) {
            let known: Vec<&str> = BUDGETS.iter().map(|budget| budget.name).collect();
            bail!("no budget `{name}`; the budgets are {}", known.join(", "));
        }
    }
    let folder = target_folder().join("budget");
    let mut table = String::from("| budget | limit | measured | within |\n|---|---|---|---|\n");
    let mut over = Vec::new();
    for budget in BUDGETS.iter().filter(|b| names.is_empty() || names.contains(&b.name)) {
        let limit = limit(LIMITS, budget.name)?;
        let measured = (budget.measure)(&folder)?;
        let row = row(budget, limit, measured);
        shell::say(&row);
        let _ = writeln!(table, "{row}");
        if measured > limit {
            over.push(budget.name);
        }
    }
    if write {
        write_page(&table)?;
    }
    shell::say(&table);
    if !over.is_empty() {
        bail!("over budget: {}", over.join(", "));
    }
    Ok(())
}

fn row(budget: &Budget, limit: f64, measured: f64) -> String {
    let show = |value: f64| {
        if budget.name.ends_with("_bytes") {
            format!("{:.1} MB", value / 1e6)
        } else {
            format!("{value:.0} s")
        }
    };
    let within = if measured <= limit { "yes" } else { "**no**" };
    format!("| {} | {} | {} | {within} |", budget.title, show(limit), show(measured))
}

/// The limit of a budget, from lines `name = number # comment`.
fn limit(limits: &str, name: &str) -> Result<f64> {
    let line = limits
        .lines()
        .filter_map(|line| line.split('#').next()?.split_once('='))
        .find(|(key, _)| key.trim() == name)
        .with_context(|| format!("xtask/budget.toml has no {name}"))?;
    let number = line.1.trim().replace('_', "");
    number.parse().with_context(|| format!("{name} = {number} is not a number"))
}

/// The target folder of the build that runs us.
fn target_folder() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    given.unwrap_or_else(|| shell::root().join("target"))
}

/// Runs cargo with two jobs into `folder`, as a fresh machine would, and returns its seconds.
fn timed(args: &str, folder: &Path, incremental: bool) -> Result<f64> {
    let mut command = shell::cargo(args);
    command
        .env("CARGO_TARGET_DIR", folder)
        .env("CARGO_BUILD_JOBS", "2")
        .env("CARGO_INCREMENTAL", if incremental { "1" } else { "0" });
    let start = Instant::now();
    shell::run(&mut command)?;
    Ok(start.elapsed().as_secs_f64())
}

fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    Ok(())
}

fn release_build(folder: &Path) -> Result<f64> {
    // Downloads are not part of the build.
    shell::run(&mut shell::cargo("fetch --locked"))?;
    let folder = folder.join("release");
    empty(&folder)?;
    timed("build --release --locked", &folder, false)
}

fn binary_size(folder: &Path) -> Result<f64> {
    let binary = folder.join("release/release/lockstep");
    if !binary.exists() {
        timed("build --release --locked", &folder.join("release"), false)?;
    }
    Ok(fs::metadata(&binary).context("the release build left no binary")?.len() as f64)
}

fn incremental_check(folder: &Path) -> Result<f64> {
    let folder = folder.join("check");
    let check = "check --workspace --locked";
    timed(check, &folder, true)?;
    let path = shell::root().join(EDITED);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {EDITED}"))?;
    fs::write(&path, format!("{text}{PROBE}")).with_context(|| format!("cannot edit {EDITED}"))?;
    let seconds = timed(check, &folder, true);
    fs::write(&path, text).with_context(|| format!("cannot restore {EDITED}"))?;
    seconds
}

fn test_suite(folder: &Path) -> Result<f64> {
    let folder = folder.join("test");
    empty(&folder)?;
    timed("test --workspace --locked", &folder, false)
}

/// Replaces the table between the page's two markers.
fn write_page(table: &str) -> Result<()> {
    let path = shell::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let text = format!("{BEGIN}\n{}\n\n{table}{END}", circumstances());
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("no {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no {END}"))?;
    fs::write(&path, format!("{before}{text}{after}")).context("cannot write the page")
}

/// Date, commit and machine in one line.
fn circumstances() -> String {
    let capture = |program: &str, args: &[&str]| {
        let output = shell::capture(Command::new(program).args(args)).unwrap_or_default();
        output.trim().to_owned()
    };
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "{}, commit {}, {cores} cores of {}, {}.",
        capture("date", &["-u", "+%Y-%m-%d"]),
        capture("git", &["rev-parse", "--short", "HEAD"]),
        cpu.map_or("an unknown CPU", |(_, name)| name),
        capture("rustc", &["--version"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_budget_has_a_limit() {
        for budget in BUDGETS {
            assert!(limit(LIMITS, budget.name).unwrap() > 0.0, "{}", budget.name);
        }
        assert!(limit(LIMITS, "no_such").is_err());
    }

    #[test]
    fn limits_are_read_without_comments_and_underscores() {
        let limits = "# a = 1\na = 2_000 # bytes\n";
        assert!((limit(limits, "a").unwrap() - 2000.0).abs() < 1e-9);
        assert!(limit("a = x", "a").is_err());
    }

    #[test]
    fn a_row_says_whether_the_limit_holds() {
        let budget = &BUDGETS[1];
        assert!(row(budget, 30e6, 29.95e6).ends_with("| 30.0 MB | 29.9 MB | yes |"));
        assert!(row(budget, 30e6, 31e6).ends_with("| **no** |"));
    }

    #[test]
    fn an_unknown_budget_is_refused() {
        assert!(run(&["speed"]).is_err());
    }
}
