//! Checker of trace files against the trace-event format: ids, nesting, arrows and time.
//!
//! It reads the file as any other program would, and shares no code with the writer.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Track of an event: process and thread.
pub type TrackId = (u64, u64);

/// A span of a checked trace, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Track.
    pub track: TrackId,
    /// Name.
    pub name: String,
    /// Category.
    pub category: String,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Number of completed steps.
    pub step: u64,
    /// Task of the step program.
    pub task: Option<u64>,
}

/// A trace that passed the checks.
#[derive(Clone, Debug, Default)]
pub struct CheckedTrace {
    /// Spans in the order of the file.
    pub spans: Vec<Span>,
    /// Names of the tracks.
    pub tracks: BTreeMap<TrackId, String>,
    /// Arrows: name, and track and time of both ends.
    pub arrows: Vec<(String, [(TrackId, u64); 2])>,
    /// Bound of the error of each rank's clock, in nanoseconds.
    pub clock_errors: Vec<u64>,
}

/// Reads and checks a trace of `num_ranks` ranks, or says what is wrong with it.
pub fn check_trace(text: &str, num_ranks: usize) -> Result<CheckedTrace, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut trace = CheckedTrace::default();
    let mut arrow_ends: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for event in file["traceEvents"].as_array().ok_or("traceEvents is no list")? {
        let fault = |what: &str| format!("{what}: {event}");
        let track = track_of(event).ok_or_else(|| fault("no track"))?;
        if track.0 >= num_ranks as u64 {
            return Err(fault("no rank of the run"));
        }
        match event["ph"].as_str() {
            Some("M") => name_track(&mut trace, track, event)?,
            Some("X") => {
                trace.spans.push(span_of(event, track).ok_or_else(|| fault("no span"))?);
            }
            Some("s" | "f") => {
                let id = event["id"].as_str().ok_or_else(|| fault("no id"))?;
                arrow_ends.entry(id.to_owned()).or_default().push(event);
            }
            _ => return Err(fault("an unknown phase")),
        }
    }
    let errors = (0..num_ranks).map(|rank| {
        let note = &file["otherData"][format!("clock_error_ns_of_rank_{rank}")];
        note.as_str().and_then(|text| text.parse().ok()).ok_or(format!("clock of rank {rank}"))
    });
    trace.clock_errors = errors.collect::<Result<_, String>>()?;
    check_tracks(&trace, num_ranks)?;
    check_nesting(&trace)?;
    check_tasks(&trace)?;
    for (id, ends) in arrow_ends {
        let arrow = check_arrow(&trace, &ends).map_err(|fault| format!("arrow {id}: {fault}"))?;
        trace.arrows.push(arrow);
    }
    Ok(trace)
}

fn track_of(event: &Value) -> Option<TrackId> {
    Some((event["pid"].as_u64()?, event["tid"].as_u64()?))
}

fn name_track(trace: &mut CheckedTrace, track: TrackId, event: &Value) -> Result<(), String> {
    if event["name"] == "thread_name" {
        let name = event["args"]["name"].as_str().ok_or(format!("no name: {event}"))?;
        if trace.tracks.insert(track, name.to_owned()).is_some() {
            return Err(format!("a track is named twice: {event}"));
        }
    }
    Ok(())
}

/// A time of the file, in microseconds with three decimals, in nanoseconds.
fn nanos(value: &Value) -> Option<u64> {
    let micros = value.as_f64().filter(|micros| *micros >= 0.0)?;
    Some((micros * 1000.0).round() as u64)
}

fn span_of(event: &Value, track: TrackId) -> Option<Span> {
    let (start, duration) = (nanos(&event["ts"])?, nanos(&event["dur"])?);
    Some(Span {
        track,
        name: event["name"].as_str().filter(|name| !name.is_empty())?.to_owned(),
        category: event["cat"].as_str()?.to_owned(),
        start,
        end: start + duration,
        step: event["args"]["step"].as_u64()?,
        task: event["args"]["task"].as_u64(),
    })
}

/// Every track with a span has a name, and every rank has spans.
fn check_tracks(trace: &CheckedTrace, num_ranks: usize) -> Result<(), String> {
    for span in &trace.spans {
        if !trace.tracks.contains_key(&span.track) {
            return Err(format!("no name of the track of {span:?}"));
        }
    }
    let ranks: BTreeSet<u64> = trace.spans.iter().map(|span| span.track.0).collect();
    let missing = (0..num_ranks as u64).find(|rank| !ranks.contains(rank));
    missing.map_or(Ok(()), |rank| Err(format!("rank {rank} has no span")))
}

/// Two spans of a track are apart, or one is inside the other.
fn check_nesting(trace: &CheckedTrace) -> Result<(), String> {
    let mut by_track: BTreeMap<TrackId, Vec<&Span>> = BTreeMap::new();
    for span in &trace.spans {
        by_track.entry(span.track).or_default().push(span);
    }
    for spans in by_track.values_mut() {
        // Of two that start together the longer one is outside.
        spans.sort_by_key(|span| (span.start, u64::MAX - span.end));
        let mut open: Vec<&Span> = Vec::new();
        for span in spans {
            while open.last().is_some_and(|outer| outer.end <= span.start) {
                open.pop();
            }
            if let Some(outer) = open.last().filter(|outer| span.end > outer.end) {
                return Err(format!("{span:?} overlaps {outer:?}"));
            }
            open.push(span);
        }
    }
    Ok(())
}

/// Tasks of a rank's step have different ids and run one after the other, where they are not
/// background calls, which have the id of the task that issued them.
fn check_tasks(trace: &CheckedTrace) -> Result<(), String> {
    let mut by_step: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
    for span in trace.spans.iter().filter(|span| span.task.is_some()) {
        if !trace.tracks[&span.track].ends_with("in the background") {
            by_step.entry((span.track.0, span.step)).or_default().push(span);
        }
    }
    for ((rank, step), spans) in by_step {
        let ids: BTreeSet<_> = spans.iter().map(|span| span.task).collect();
        if ids.len() < spans.len() {
            return Err(format!("a task of step {step} of rank {rank} is there twice"));
        }
        for pair in spans.windows(2) {
            if pair[1].start < pair[0].end {
                return Err(format!("{:?} begins before the end of {:?}", pair[1], pair[0]));
            }
        }
    }
    Ok(())
}

/// An arrow has one start and one end, on two ranks, each inside a span, and does not point into
/// the past by more than the clocks' errors.
fn check_arrow(
    trace: &CheckedTrace,
    ends: &[&Value],
) -> Result<(String, [(TrackId, u64); 2]), String> {
    let [one, other] = ends else { return Err(format!("{} ends", ends.len())) };
    let [start, finish] = if one["ph"] == "s" { [one, other] } else { [other, one] };
    if start["ph"] != "s" || finish["ph"] != "f" || finish["bp"] != "e" {
        return Err(format!("{start} to {finish}"));
    }
    if start["name"] != finish["name"] || start["cat"] != finish["cat"] {
        return Err("the ends have different names".to_owned());
    }
    let place = |end: &Value| Some((track_of(end)?, nanos(&end["ts"])?));
    let (from, to) = place(start).zip(place(finish)).ok_or("no time")?;
    if from.0.0 == to.0.0 {
        return Err("both ends on one rank".to_owned());
    }
    for (track, at) in [from, to] {
        let holds = |span: &Span| span.track == track && (span.start..=span.end).contains(&at);
        if !trace.spans.iter().any(holds) {
            return Err(format!("no span of track {track:?} at {at} ns"));
        }
    }
    let error: u64 = [from, to].map(|(track, _)| trace.clock_errors[track.0 as usize]).iter().sum();
    if to.1 + error < from.1 {
        let gap = from.1 - to.1;
        return Err(format!("it arrives {gap} ns before it leaves, and clocks err by {error} ns"));
    }
    Ok((start["name"].as_str().unwrap_or_default().to_owned(), [from, to]))
}
