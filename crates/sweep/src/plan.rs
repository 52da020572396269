//! The runs of a sweep, and the checks on all of them before the first one starts.

use crate::halving::Rung;
use crate::metric::Metric;
use crate::search_space::Choice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A sweep whose runs are all valid.
#[derive(Debug)]
pub struct Plan {
    /// Keys that differ between runs.
    pub keys: Vec<String>,
    /// The runs.
    pub runs: Vec<Run>,
    /// Rounds of successive halving; one round without it.
    pub rungs: Vec<Rung>,
    /// The metric that ranks runs.
    pub by: Metric,
    /// Halving rate; 1 without halving.
    pub eta: u64,
    /// Number of runs at a time.
    pub jobs: usize,
    /// Compute threads per worker of each run, where the recipe leaves them open: parallel runs
    /// share the cores, and results do not depend on the number of threads.
    pub threads: Vec<Option<usize>>,
    /// Whether all runs train on text.
    pub is_text: bool,
    /// Predicted seconds of the sweep, on a calibrated machine.
    pub seconds: Option<f64>,
}

/// One configuration. Two are equal if they set the same values of the same recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the run and of its folder.
    pub name: String,
    /// The value of each key.
    pub values: Choice,
    /// Further settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Steps of the complete run.
    pub steps: u64,
    /// Hash of the part of the recipe that determines the result.
    pub recipe_hash: String,
}

impl Run {
    /// A run whose recipe is not resolved yet.
    pub const fn unresolved(name: String, values: Choice, also: Vec<String>) -> Self {
        Self { name, values, also, steps: 0, recipe_hash: String::new() }
    }

    /// Settings of the run as `key=value`.
    pub fn sets(&self, keys: &[String]) -> Vec<String> {
        let pairs = keys.iter().zip(&self.values);
        let also = self.also.iter().cloned();
        pairs.map(|(key, value)| format!("{key}={value}")).chain(also).collect()
    }
}

/// Problems of many runs, each line once with the number of runs that have it.
#[derive(Debug, Default)]
pub struct Problems {
    lines: Vec<String>,
    runs: BTreeMap<String, (String, usize)>,
}

impl Problems {
    /// Adds the lines of one run with these settings.
    pub fn add(&mut self, text: &str, sets: &[String]) {
        for line in text.lines() {
            if !self.runs.contains_key(line) {
                self.lines.push(line.to_owned());
            }
            self.runs.entry(line.to_owned()).or_insert((sets.join(" "), 0)).1 += 1;
        }
    }

    /// All lines, or nothing if there are none.
    pub fn render(&self, num_runs: usize) -> Option<String> {
        let line = |line: &String| match &self.runs[line] {
            (_, count) if *count == num_runs => line.clone(),
            (first, 1) => format!("{line} (the run with {first})"),
            (first, count) => format!("{line} ({count} of {num_runs} runs, first with {first})"),
        };
        let lines: Vec<String> = self.lines.iter().map(line).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Memory of the `jobs` largest runs; `peaks` are in descending order.
pub fn parallel_bytes(peaks: &[u64], jobs: usize) -> u64 {
    peaks.iter().take(jobs).sum()
}

/// Largest number of parallel runs that fit in `memory`, at least one.
pub fn max_jobs_in_memory(peaks: &[u64], jobs: usize, memory: u64) -> usize {
    (1..=jobs).rev().find(|fewer| parallel_bytes(peaks, *fewer) <= memory).unwrap_or(1)
}

/// Share of all runs' steps that a search computes: each rung adds the steps beyond the last one.
pub fn share_of_steps(rungs: &[Rung]) -> f64 {
    const WHOLE: u64 = 1 << 40;
    let mut done = (0.0, 0);
    for rung in rungs {
        let steps = rung.steps(WHOLE);
        done = (done.0 + rung.num_runs as f64 * (steps - done.1) as f64, steps);
    }
    done.0 / (rungs[0].num_runs as f64 * WHOLE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::halving::rungs;

    #[test]
    fn a_problem_of_many_runs_is_one_line_with_their_number() {
        let mut problems = Problems::default();
        let sets = |text: &str| vec![text.to_owned()];
        problems.add("all are wrong\nsome are wrong", &sets("a=1"));
        problems.add("all are wrong\nsome are wrong", &sets("a=2"));
        problems.add("all are wrong\none is wrong", &sets("a=3"));
        assert_eq!(
            problems.render(3).expect("three lines"),
            "all are wrong\nsome are wrong (2 of 3 runs, first with a=1)\none is wrong (the run \
             with a=3)"
        );
        assert_eq!(Problems::default().render(3), None);
    }

    #[test]
    fn halving_computes_a_part_of_the_steps() {
        assert!((share_of_steps(&rungs(16, 1, 400)) - 1.0).abs() < 1e-9);
        // 16 quarters, 4 of which continue for three quarters more.
        let share = share_of_steps(&rungs(16, 4, 8));
        assert!((share - (16.0 / 4.0 + 4.0 * 0.75) / 16.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn only_as_many_runs_are_parallel_as_memory_holds() {
        assert_eq!(max_jobs_in_memory(&[5, 4, 3], 2, 9), 2);
        assert_eq!(max_jobs_in_memory(&[5, 4, 3], 3, 9), 2);
        assert_eq!(max_jobs_in_memory(&[5, 4, 3], 3, 1), 1);
    }
}
