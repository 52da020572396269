//! Hashes of losses and weights of many short runs, as recorded: no bit may change unnoticed.
//!
//! `golden/hashes.txt` lists the runs with their settings and hashes, so other builds can be
//! compared by `lockstep train --json` with the same settings. After an intended change,
//! `LOCKSTEP_BLESS=1 cargo test -p lockstep-harness --test suite golden_hashes` records them anew;
//! the commit says why.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::runs::bless;
use lockstep_harness::{Runs, golden};
use std::fmt::Write;

/// Settings of every run here. In single precision, all machines have the same bits.
const COMMON: [&str; 5] = [
    "train.steps=3",
    "train.eval_batches=1",
    "run.isolation=threads",
    "run.threads=1",
    "run.device=cpu",
];

/// A run of the file: preset and settings, and the hashes of its losses and weights.
struct Recorded {
    settings: String,
    hashes: String,
}

/// Runs of the file. A line has the settings, the next one, indented, the hashes.
fn parse(text: &str) -> Vec<Recorded> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    let mut recorded = Vec::new();
    while let Some(settings) = lines.next() {
        let hashes = lines.next_if(|line| line.starts_with(' ')).unwrap_or_default();
        recorded.push(Recorded { settings: settings.to_owned(), hashes: hashes.trim().to_owned() });
    }
    recorded
}

fn recipe(settings: &str) -> Recipe {
    let mut parts = settings.split(' ').map(str::to_owned);
    let preset = parts.next();
    let sets = COMMON.map(str::to_owned).into_iter().chain(parts).collect();
    resolve(&Sources { preset, sets, ..Sources::default() }).expect("a sound recipe")
}

#[test]
fn hashes_of_short_runs_are_as_recorded() {
    let mut runs = Runs::new("golden-hashes");
    let path = golden::folder().join("hashes.txt");
    let text = runs.world().files().read_to_string(&path).expect("golden files are committed");
    let recorded = parse(&text);
    assert!(recorded.len() > 20, "the list is parsed");
    let mut found = String::new();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        let _ = writeln!(found, "{line}");
    }
    for Recorded { settings, .. } in &recorded {
        let hashes = runs.finish(&recipe(settings)).hashes();
        let _ = writeln!(found, "{settings}\n  {} {}", hashes.losses, hashes.weights);
    }
    if bless() {
        let files = runs.world().files();
        files.write_atomic(&path, found.as_bytes()).expect("golden files can be written");
        return;
    }
    for (found, expected) in parse(&found).iter().zip(&recorded) {
        assert_eq!(found.hashes, expected.hashes, "{}", expected.settings);
    }
}
