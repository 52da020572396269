//! `lockstep doctor`: diagnoses a failed run from the flight recorders of its ranks.
//!
//! Every rank records its last calls and writes them to a file after a failure. For a killed rank,
//! another rank of the same host writes the file. All ranks make the same calls of a group in the
//! same order, so a rank with fewer calls than the others is the one that they wait for. Files may
//! be missing. Of a run folder the reader of `explain` adds how far the run came and its error.

use crate::failure::Failure;
use crate::newest_run::newest_run;
use crate::output;
use crate::workers::print_status;
use lockstep_planner::recipe::layout_from_recipe;
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_trainer::flight_record::{FlightCall, FlightError, FlightRecord, read_flight_records};
use lockstep_trainer::recorded_run::RecordedRun;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Diagnose a failed run: which rank missed which collective call
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep doctor                         the newest run
  lockstep doctor runs/0007               a run that failed
  lockstep doctor runs/0007 --json        JSON

Ranks without records are listed; the records of the others are sufficient.")]
pub(crate) struct Arguments {
    /// Run directory, or the folder with the files flight-rank-N.json (default: the newest run)
    folder: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Folder of the records.
    folder: String,
    num_ranks: usize,
    /// State of the run; null where the folder has nothing but records.
    run: Option<RunState>,
    /// Verdicts, each with the ranks that recorded it; one where all ranks agree.
    verdicts: Vec<Finding>,
    missing_records: Vec<usize>,
    absent: Vec<AbsentRank>,
    ranks: Vec<RankReport>,
}

/// How far a run came.
#[derive(Serialize)]
struct RunState {
    layout: String,
    /// Number of completed steps.
    steps: u64,
    /// Error that ended it, as `explain` has it.
    failure: Option<String>,
}

impl RunState {
    fn read(folder: &Path, world: &World) -> Option<Self> {
        let run = RecordedRun::read(folder, world).ok()?;
        let mut steps = 0;
        let visited = run.visit_events(world, |event| {
            if let Event::Step { step, .. } = event {
                steps = *step;
            }
        });
        visited.ok()?;
        let layout = layout_from_recipe(&run.recipe).to_string();
        Some(Self { layout, steps, failure: run.failure.map(|failure| failure.reason) })
    }
}

#[derive(Serialize)]
struct Finding {
    culprit: Option<usize>,
    text: String,
    ranks: Vec<usize>,
}

/// A rank that did not reach a call of its group.
#[derive(Serialize)]
struct AbsentRank {
    rank: usize,
    group: String,
    number: u64,
    call: String,
    label: String,
    waiting: Vec<usize>,
    last_number: u64,
}

#[derive(Serialize)]
struct RankReport {
    rank: usize,
    host: Option<String>,
    process: Option<u32>,
    written_by: usize,
    last: Option<FlightCall>,
    last_group: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => newest_run("doctor", world)?.path().to_owned(),
    };
    let dumps = read_all(&folder, world)?;
    let run = RunState::read(&folder, world);
    let report = Report { folder: folder.display().to_string(), run, ..examine(&dumps) };
    if arguments.json {
        return output::json(&report);
    }
    if arguments.folder.is_none() {
        print_status(&format!("the newest run is {}\n", report.folder));
    }
    output::text(&render(&report))
}

/// The records in a folder, or in its subfolder `flight`.
fn read_all(folder: &Path, world: &World) -> Result<Vec<FlightRecord>, Failure> {
    let records = read_flight_records(folder, world).map_err(|error| match error {
        FlightError::File(error) => Failure::from(error),
        error => Failure::user(error.to_string()),
    })?;
    if records.is_empty() {
        return Err(Failure::user(format!(
            "{} has no flight-rank-N.json; a run writes them when it fails, and `lockstep runs` \
             lists which runs failed; `lockstep explain` says why a run is slow",
            folder.display()
        )));
    }
    Ok(records)
}

fn examine(dumps: &[FlightRecord]) -> Report {
    let num_ranks = dumps.iter().map(|dump| dump.num_ranks).max().unwrap_or(0);
    let mut verdicts: Vec<Finding> = Vec::new();
    for dump in dumps {
        let Some(text) = &dump.verdict else { continue };
        match verdicts.iter_mut().find(|known| known.text == *text) {
            Some(known) => known.ranks.push(dump.rank),
            None => verdicts.push(Finding {
                culprit: dump.culprit,
                text: text.clone(),
                ranks: vec![dump.rank],
            }),
        }
    }
    let is_missing = |rank: &usize| dumps.iter().all(|dump| dump.rank != *rank);
    let report = |dump: &FlightRecord| {
        let last = dump.calls.last().cloned();
        let last_group = last.as_ref().map(|call| group_name(dump, call.group));
        let (host, process) = (dump.host.clone(), dump.process);
        let (rank, written_by) = (dump.rank, dump.written_by);
        RankReport { rank, host, process, written_by, last, last_group }
    };
    Report {
        folder: String::new(),
        num_ranks,
        run: None,
        verdicts,
        missing_records: (0..num_ranks).filter(is_missing).collect(),
        absent: absent_ranks(dumps),
        ranks: dumps.iter().map(report).collect(),
    }
}

fn group_name(dump: &FlightRecord, id: u64) -> String {
    let known = dump.groups.iter().find(|group| group.id == id);
    known.map_or_else(|| format!("group {id}"), |group| group.name.clone())
}

/// Identity of a group: id, name and first rank.
type Key = (u64, String, u64);

/// Ranks that made fewer calls than the others of their group.
fn absent_ranks(dumps: &[FlightRecord]) -> Vec<AbsentRank> {
    let mut last: BTreeMap<Key, Vec<(usize, &FlightCall)>> = BTreeMap::new();
    for dump in dumps {
        for group in dump.groups.iter().filter(|group| group.size > 1) {
            let calls = dump.calls.iter().filter(|call| call.group == group.id && !call.message);
            if let Some(newest) = calls.max_by_key(|call| call.number) {
                let key = (group.id, group.name.clone(), group.first_rank);
                last.entry(key).or_default().push((dump.rank, newest));
            }
        }
    }
    let mut found = Vec::new();
    for ((_, group, _), ranks) in last {
        let Some((_, furthest)) = ranks.iter().max_by_key(|(_, call)| call.number) else {
            continue;
        };
        let arrived = |call: &FlightCall| call.number == furthest.number;
        let waiting = ranks.iter().filter(|(_, call)| arrived(call) && call.state != "ended");
        let waiting: Vec<usize> = waiting.map(|(rank, _)| *rank).collect();
        for (rank, call) in ranks.iter().filter(|(_, call)| !arrived(call)) {
            found.push(AbsentRank {
                rank: *rank,
                group: group.clone(),
                number: furthest.number,
                call: furthest.what.clone(),
                label: furthest.label.clone(),
                waiting: waiting.clone(),
                last_number: call.number,
            });
        }
    }
    found
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    match &report.verdicts[..] {
        [] => text.push_str("no rank recorded a verdict\n"),
        [one] => {
            let _ = writeln!(text, "all records agree: {}", one.text);
        }
        several => {
            for one in several {
                let _ = writeln!(text, "{} report: {}", ranks(&one.ranks), one.text);
            }
        }
    }
    if let Some(RunState { layout, steps, failure }) = &report.run {
        let failure =
            failure.as_ref().map_or_else(String::new, |why| format!("; it failed: {why}"));
        let _ = writeln!(text, "the run of {layout} ended after {steps} steps{failure}");
    }
    for absent in &report.absent {
        let label =
            if absent.label.is_empty() { String::new() } else { format!(" ({})", absent.label) };
        let waiting = match &absent.waiting[..] {
            [] => String::new(),
            waiting => format!(", where {} waited", ranks(waiting)),
        };
        let _ = writeln!(
            text,
            "rank {} did not reach call {} of the {} group, {}{label}{waiting}; its last call \
             there was {}",
            absent.rank, absent.number, absent.group, absent.call, absent.last_number
        );
    }
    for rank in &report.ranks {
        let _ = writeln!(text, "{}", render_last_call(rank));
    }
    if !report.missing_records.is_empty() {
        let missing = ranks(&report.missing_records);
        let _ = writeln!(
            text,
            "no records of {missing}: it may have failed first, or be on another host"
        );
    }
    text
}

fn render_last_call(rank: &RankReport) -> String {
    let process = match (rank.process, &rank.host) {
        (Some(id), Some(host)) => format!(" (process {id} on {host})"),
        _ => String::new(),
    };
    let by = match rank.written_by {
        by if by == rank.rank => String::new(),
        by => format!(" (recorded by rank {by})"),
    };
    let (Some(call), Some(group)) = (&rank.last, &rank.last_group) else {
        return format!("rank {}{process} made no call{by}", rank.rank);
    };
    let FlightCall { number, what, label, bytes, .. } = call;
    let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
    let end = match (call.state.as_str(), call.end_ns, call.done_bytes) {
        ("ended", Some(end), _) => {
            let took = std::time::Duration::from_nanos(end.saturating_sub(call.start_ns));
            format!("ended after {} ms", took.as_millis())
        }
        ("failed", _, Some(done)) => format!("failed after {done} bytes"),
        _ => "not finished".to_owned(),
    };
    format!(
        "rank {}{process}: last call {number} of the {group} group, {what}{label}, {bytes} bytes, \
         {end}{by}",
        rank.rank
    )
}

/// `rank 1`, `ranks 1, 2`.
fn ranks(list: &[usize]) -> String {
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    let plural = if list.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_trainer::flight_record::FlightGroup;

    fn call(number: u64, state: &str) -> FlightCall {
        FlightCall {
            group: 0,
            number,
            what: "all-reduce of 8 f32, sum, by direct".to_owned(),
            message: false,
            bytes: 32,
            label: format!("bucket 3 of step {number}"),
            start_ns: 0,
            state: state.to_owned(),
            end_ns: (state == "ended").then_some(2_000_000),
            done_bytes: (state == "failed").then_some(16),
        }
    }

    fn dump(rank: usize, written_by: usize, calls: Vec<FlightCall>) -> FlightRecord {
        let group = FlightGroup { id: 0, name: "world".to_owned(), size: 3, first_rank: 0 };
        FlightRecord {
            version: 1,
            rank,
            num_ranks: 3,
            written_by,
            host: Some("nut".to_owned()),
            process: Some(70 + rank as u32),
            culprit: Some(1),
            verdict: Some("rank 1 left".to_owned()),
            groups: vec![group],
            calls,
        }
    }

    #[test]
    fn a_rank_with_fewer_calls_is_reported_as_absent() {
        let dumps = [
            dump(0, 0, vec![call(16, "ended"), call(17, "failed")]),
            dump(1, 0, vec![call(15, "ended"), call(16, "ended")]),
        ];
        let text = render(&examine(&dumps));
        let expected = "\
all records agree: rank 1 left
rank 1 did not reach call 17 of the world group, all-reduce of 8 f32, sum, by direct \
(bucket 3 of step 17), where rank 0 waited; its last call there was 16
rank 0 (process 70 on nut): last call 17 of the world group, all-reduce of 8 f32, sum, by \
direct (bucket 3 of step 17), 32 bytes, failed after 16 bytes
rank 1 (process 71 on nut): last call 16 of the world group, all-reduce of 8 f32, sum, by \
direct (bucket 3 of step 16), 32 bytes, ended after 2 ms (recorded by rank 0)
no records of rank 2: it may have failed first, or be on another host
";
        assert_eq!(text, expected);
    }
}
