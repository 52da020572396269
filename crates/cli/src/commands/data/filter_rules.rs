//! `lockstep data filter-rules`: the rules of `data filter`.

use crate::failure::Failure;
use crate::output;
use lockstep_data::filter::{ActiveRule, Side, rules};
use serde::Serialize;
use std::fmt::Write as _;

/// Print the rules of data filter with their limits and origins
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep data filter-rules
  lockstep data filter-rules --json")]
pub(crate) struct Arguments {
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// A rule, with its counts.
#[derive(Serialize)]
pub(super) struct RuleReport {
    pub(super) name: &'static str,
    pub(super) removed_if: String,
    pub(super) limit: f64,
    pub(super) pipeline: &'static str,
    pub(super) citation: &'static str,
    /// Documents that this rule removed as the first one.
    pub(super) removed: u64,
    /// Documents that break it.
    pub(super) broken: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let active = rules().map(|rule| ActiveRule { rule, limit: rule.limit });
    let rules: Vec<_> = active.map(|active| RuleReport::of(&active, 0, 0)).collect();
    if arguments.json {
        return output::json(&rules);
    }
    let mut text = String::new();
    for RuleReport { name, removed_if, citation, .. } in &rules {
        let _ = writeln!(text, "{name:<24} {removed_if} ({citation})");
    }
    output::text(&text)
}

impl RuleReport {
    pub(super) fn of(active: &ActiveRule, removed: u64, broken: u64) -> Self {
        let ActiveRule { rule, limit } = active;
        let side = match rule.side {
            Side::Below => "below",
            Side::Above => "above",
        };
        Self {
            name: rule.name,
            removed_if: format!("{} {side} {limit}", rule.meaning),
            limit: *limit,
            pipeline: rule.origin.name(),
            citation: rule.origin.citation(),
            removed,
            broken,
        }
    }
}
