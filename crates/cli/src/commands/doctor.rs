//! `lockstep doctor`: what the last calls of all ranks say about a failure.
//!
//! Every rank keeps its last calls, and after a failure writes them to a file; a rank that was
//! killed cannot, but on the same host another one does it in its place. Held side by side the
//! files show what no single one can: all ranks make the same calls of a group in the same order,
//! so whoever has made fewer of them than the others did not arrive. Files may be missing.

use crate::failure::Failure;
use crate::output;
use lockstep_platform::{FileError, World};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Tell from the records of a failed run who did not arrive where, and what it did last
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep doctor runs/0007               a run that failed
  lockstep doctor runs/0007 --json        the same for a program

A rank whose records are missing is named as such; the others are enough for an answer.")]
pub(crate) struct Arguments {
    /// The run's folder, or the folder with the files flight-rank-N.json
    folder: PathBuf,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// One rank's file; fields that this program does not need are left out.
#[derive(Deserialize)]
struct Dump {
    version: u32,
    rank: usize,
    num_ranks: usize,
    written_by: usize,
    host: Option<String>,
    process: Option<u32>,
    culprit: Option<usize>,
    verdict: Option<String>,
    groups: Vec<Group>,
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Group {
    id: u64,
    name: String,
    group_size: u64,
    first_member: u64,
}

#[derive(Clone, Deserialize, Serialize)]
struct Call {
    group: u64,
    number: u64,
    #[serde(rename = "call")]
    what: String,
    message: bool,
    bytes: u64,
    label: String,
    start_ns: u64,
    state: String,
    end_ns: Option<u64>,
    done_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Report {
    num_ranks: usize,
    /// Verdicts, each with the ranks whose files hold it; one if all is as it should be.
    verdicts: Vec<Finding>,
    missing_records: Vec<usize>,
    late: Vec<Late>,
    ranks: Vec<RankReport>,
}

#[derive(Serialize)]
struct Finding {
    culprit: Option<usize>,
    text: String,
    ranks: Vec<usize>,
}

/// A rank that did not arrive at a call that others made.
#[derive(Serialize)]
struct Late {
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
    last: Option<Call>,
    last_group: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let dumps = read_all(&arguments.folder, world)?;
    let report = examine(&dumps);
    if arguments.json {
        return output::json(&report);
    }
    output::text(&words(&report))
}

/// The files of a folder, or of the folder in it that training writes them to.
fn read_all(folder: &Path, world: &World) -> Result<Vec<Dump>, Failure> {
    let is_dump = |path: &PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("flight-rank-"))
            && path.extension().is_some_and(|extension| extension == "json")
    };
    let list = |folder: &Path| -> Result<Vec<PathBuf>, FileError> {
        Ok(world.files().list(folder)?.into_iter().filter(is_dump).collect())
    };
    let mut paths = list(folder).map_err(|error| Failure::user(error.to_string()))?;
    if paths.is_empty() {
        paths = list(&folder.join("flight")).unwrap_or_default();
    }
    if paths.is_empty() {
        return Err(Failure::user(format!(
            "{} holds no flight-rank-N.json; a run writes them to its folder when it fails",
            folder.display()
        )));
    }
    let mut dumps = paths.iter().map(|path| read(path, world)).collect::<Result<Vec<_>, _>>()?;
    dumps.sort_by_key(|dump| dump.rank);
    Ok(dumps)
}

fn read(path: &Path, world: &World) -> Result<Dump, Failure> {
    let text = world.files().read_to_string(path)?;
    let wrong = |reason: String| Failure::user(format!("{}: {reason}", path.display()));
    let dump: Dump = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("not the records of a rank: {error}")))?;
    if dump.version != 1 {
        return Err(wrong(format!("format {} is unknown here; 1 would be known", dump.version)));
    }
    Ok(dump)
}

fn examine(dumps: &[Dump]) -> Report {
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
    let report = |dump: &Dump| {
        let last = dump.calls.last().cloned();
        let last_group = last.as_ref().map(|call| group_name(dump, call.group));
        let (host, process) = (dump.host.clone(), dump.process);
        let (rank, written_by) = (dump.rank, dump.written_by);
        RankReport { rank, host, process, written_by, last, last_group }
    };
    Report {
        num_ranks,
        verdicts,
        missing_records: (0..num_ranks).filter(is_missing).collect(),
        late: late(dumps),
        ranks: dumps.iter().map(report).collect(),
    }
}

fn group_name(dump: &Dump, id: u64) -> String {
    let known = dump.groups.iter().find(|group| group.id == id);
    known.map_or_else(|| format!("group {id}"), |group| group.name.clone())
}

/// A group, as all its members know it.
type Key = (u64, String, u64);

/// In every group, those who made fewer calls than the others.
fn late(dumps: &[Dump]) -> Vec<Late> {
    let mut last: BTreeMap<Key, Vec<(usize, &Call)>> = BTreeMap::new();
    for dump in dumps {
        for group in dump.groups.iter().filter(|group| group.group_size > 1) {
            let calls = dump.calls.iter().filter(|call| call.group == group.id && !call.message);
            if let Some(newest) = calls.max_by_key(|call| call.number) {
                let key = (group.id, group.name.clone(), group.first_member);
                last.entry(key).or_default().push((dump.rank, newest));
            }
        }
    }
    let mut found = Vec::new();
    for ((_, group, _), members) in last {
        let Some((_, furthest)) = members.iter().max_by_key(|(_, call)| call.number) else {
            continue;
        };
        let arrived = |call: &Call| call.number == furthest.number;
        let waiting = members.iter().filter(|(_, call)| arrived(call) && call.state != "ended");
        let waiting: Vec<usize> = waiting.map(|(rank, _)| *rank).collect();
        for (rank, call) in members.iter().filter(|(_, call)| !arrived(call)) {
            found.push(Late {
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

fn words(report: &Report) -> String {
    let mut text = String::new();
    match &report.verdicts[..] {
        [] => text.push_str("no rank wrote down a verdict\n"),
        [one] => {
            let _ = writeln!(text, "all records agree: {}", one.text);
        }
        several => {
            for one in several {
                let _ = writeln!(text, "{} say: {}", ranks(&one.ranks), one.text);
            }
        }
    }
    for late in &report.late {
        let label =
            if late.label.is_empty() { String::new() } else { format!(" ({})", late.label) };
        let waiting = match &late.waiting[..] {
            [] => String::new(),
            waiting => format!(", where {} waited", ranks(waiting)),
        };
        let _ = writeln!(
            text,
            "rank {} did not arrive at call {} on the {} group, {}{label}{waiting}; its last one \
             there was call {}",
            late.rank, late.number, late.group, late.call, late.last_number
        );
    }
    for rank in &report.ranks {
        let _ = writeln!(text, "{}", last_words(rank));
    }
    if !report.missing_records.is_empty() {
        let missing = ranks(&report.missing_records);
        let _ = writeln!(text, "no records of {missing}; it may be the one, or on another host");
    }
    text
}

fn last_words(rank: &RankReport) -> String {
    let process = match (rank.process, &rank.host) {
        (Some(id), Some(host)) => format!(" (process {id} on {host})"),
        _ => String::new(),
    };
    let by = match rank.written_by {
        by if by == rank.rank => String::new(),
        by => format!(", as rank {by} read in its memory"),
    };
    let (Some(call), Some(group)) = (&rank.last, &rank.last_group) else {
        return format!("rank {}{process} made no call{by}", rank.rank);
    };
    let Call { number, what, label, bytes, .. } = call;
    let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
    let end = match (call.state.as_str(), call.end_ns, call.done_bytes) {
        ("ended", Some(end), _) => {
            let took = std::time::Duration::from_nanos(end.saturating_sub(call.start_ns));
            format!("ended after {} ms", took.as_millis())
        }
        ("failed", _, Some(done)) => format!("failed after {done} bytes"),
        _ => "never ended".to_owned(),
    };
    format!(
        "rank {}{process}: last was call {number} on the {group} group, {what}{label}, {bytes} \
         bytes, which {end}{by}",
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

    fn call(number: u64, state: &str) -> Call {
        Call {
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

    fn dump(rank: usize, written_by: usize, calls: Vec<Call>) -> Dump {
        let group = Group { id: 0, name: "world".to_owned(), group_size: 3, first_member: 0 };
        Dump {
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
    fn whoever_made_fewer_calls_did_not_arrive() {
        let dumps = [
            dump(0, 0, vec![call(16, "ended"), call(17, "failed")]),
            dump(1, 0, vec![call(15, "ended"), call(16, "ended")]),
        ];
        let text = words(&examine(&dumps));
        let expected = "\
all records agree: rank 1 left
rank 1 did not arrive at call 17 on the world group, all-reduce of 8 f32, sum, by direct \
(bucket 3 of step 17), where rank 0 waited; its last one there was call 16
rank 0 (process 70 on nut): last was call 17 on the world group, all-reduce of 8 f32, sum, by \
direct (bucket 3 of step 17), 32 bytes, which failed after 16 bytes
rank 1 (process 71 on nut): last was call 16 on the world group, all-reduce of 8 f32, sum, by \
direct (bucket 3 of step 16), 32 bytes, which ended after 2 ms, as rank 0 read in its memory
no records of rank 2; it may be the one, or on another host
";
        assert_eq!(text, expected);
    }
}
