//! `lockstep data filter`: writes the documents of a corpus that break no quality rule.

use super::corpus_args::CorpusArguments;
use super::filter_rules::RuleReport;
use super::progress::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_config::nearest;
use lockstep_data::filter::{ActiveRule, FilterProgress, filter, rules};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Remove documents of low quality by the rules of Gopher and C4
#[derive(clap::Args)]
#[command(after_help = "\
Every rule measures a document and removes it below or above a limit; the limits are those of
Rae et al. 2021 (gopher) and Raffel et al. 2020 (c4), as data filter-rules prints them. The report
has the documents that each rule removed as the first one, and those that break it.

Examples:
  lockstep data filter 'texts/*.jsonl' --out good.jsonl
  lockstep data filter code.parquet --out out.jsonl --without curly-brackets --limit min-terms=20")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// JSON Lines file to write; it must not exist
    #[arg(long)]
    out: PathBuf,
    /// Limit of a rule, as RULE=NUMBER; repeatable
    #[arg(long, value_name = "RULE=NUMBER")]
    limit: Vec<String>,
    /// A rule, gopher or c4 to leave out; repeatable
    #[arg(long, value_name = "RULE")]
    without: Vec<String>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    num_documents: u64,
    num_kept: u64,
    text_bytes: u64,
    kept_bytes: u64,
    rules: Vec<RuleReport>,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let active = active_rules(arguments)?;
    let Arguments { corpus, out, .. } = arguments;
    let documents = corpus.open(world)?;
    let start = world.clock().now();
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("filtering", &gauge, arguments.json, world)?;
    let found = filter(documents, out, &active, corpus.field(), world, &mut |progress| {
        gauge.set(progress.read_bytes, progress.total_bytes, progress.text_bytes);
    });
    drop(meter);
    let FilterProgress { num_documents, num_kept, text_bytes, kept_bytes, removed, broken, .. } =
        found?;
    let counts = active.iter().zip(removed).zip(broken);
    let report = Report {
        out: out.clone(),
        num_documents,
        num_kept,
        text_bytes,
        kept_bytes,
        rules: counts
            .map(|((rule, removed), broken)| RuleReport::of(rule, removed, broken))
            .collect(),
        seconds: world.clock().since(start).as_secs_f64(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

/// Rules with their limits.
fn active_rules(arguments: &Arguments) -> Result<Vec<ActiveRule>, Failure> {
    let mut active: Vec<_> = rules().map(|rule| ActiveRule { rule, limit: rule.limit }).collect();
    let unknown = |flag: &str, name: &str| {
        let resembled = nearest(name, rules().map(|rule| rule.name));
        let hint = resembled
            .map_or("see lockstep data filter-rules".to_owned(), |name| format!("try {name}"));
        Failure::user(format!("--{flag} {name} is not the name of a rule; {hint}"))
    };
    for text in &arguments.limit {
        let Some((name, Ok(limit))) = text.split_once('=').map(|(n, l)| (n, l.parse::<f64>()))
        else {
            let line = format!("--limit {text} is not RULE=NUMBER; try --limit min-terms=20");
            return Err(Failure::user(line));
        };
        let found = active.iter_mut().find(|active| active.rule.name == name);
        found.ok_or_else(|| unknown("limit", name))?.limit = limit;
    }
    for name in &arguments.without {
        let count = active.len();
        active.retain(|active| active.rule.name != name && active.rule.origin.name() != name);
        if active.len() == count {
            return Err(unknown("without", name));
        }
    }
    if active.is_empty() {
        return Err(Failure::user("--without leaves no rule, so nothing is filtered"));
    }
    Ok(active)
}

fn render(report: &Report) -> String {
    let Report { num_documents, num_kept, .. } = report;
    let mut text = format!("{}: {num_kept} of {num_documents} documents\n", report.out.display());
    let (kept, all) = (si_bytes(report.kept_bytes), si_bytes(report.text_bytes));
    let _ = writeln!(text, "{kept} of {all} of text, in {:.1} s", report.seconds);
    let _ = writeln!(text, "{:<24} {:>10} {:>10}", "rule", "removed", "broken");
    for RuleReport { name, removed, broken, .. } in report.rules.iter().filter(|r| r.broken > 0) {
        let _ = writeln!(text, "{name:<24} {removed:>10} {broken:>10}");
    }
    text
}
