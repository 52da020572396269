//! Trace events of Chrome and Perfetto: spans on tracks, and arrows between them, as JSON.
//!
//! The format is "Trace Event Format" (Google, 2016): complete events (`X`) for spans, metadata
//! (`M`) for the names of processes and threads, and flow events (`s`, `f`) for arrows. A rank is
//! a process and a resource of it a thread. Times are in microseconds with three decimals.
//!
//! A [`TraceText`] holds the events of one rank, so that each rank renders its own and rank 0 joins
//! the texts without reading them.

use std::fmt::Write;
use std::time::Duration;

/// Process and thread of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Track {
    /// Rank.
    pub rank: usize,
    /// Number of the resource.
    pub resource: u32,
}

/// A span of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSpan<'a> {
    /// Track.
    pub track: Track,
    /// Name, which readers show.
    pub name: &'a str,
    /// Category, by which readers filter.
    pub category: &'a str,
    /// Start.
    pub start: Duration,
    /// End, not before the start.
    pub end: Duration,
    /// Number of completed steps.
    pub step: u64,
    /// Task of the step program, if it is one.
    pub task: Option<u32>,
}

/// End of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// Where it leaves.
    Start,
    /// Where it arrives.
    Finish,
}

/// Events of a rank, as JSON objects with commas between them.
#[derive(Clone, Debug, Default)]
pub struct TraceText {
    text: String,
}

impl TraceText {
    /// Text before the events of a file.
    pub const HEAD: &'static str = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

    /// Names the process of a rank.
    pub fn name_rank(&mut self, rank: usize, name: &str) {
        self.metadata("process_name", Track { rank, resource: 0 }, "name", Some(name));
        self.metadata("process_sort_index", Track { rank, resource: 0 }, "sort_index", None);
    }

    /// Names the thread of a resource.
    pub fn name_track(&mut self, track: Track, name: &str) {
        self.metadata("thread_name", track, "name", Some(name));
        self.metadata("thread_sort_index", track, "sort_index", None);
    }

    /// Metadata: a name, or the place of the track among others.
    fn metadata(&mut self, kind: &str, track: Track, field: &str, name: Option<&str>) {
        let Track { rank, resource } = track;
        self.begin();
        let _ = write!(
            self.text,
            "{{\"ph\":\"M\",\"name\":\"{kind}\",\"pid\":{rank},\"tid\":{resource},\
             \"args\":{{\"{field}\":"
        );
        let place = if kind.starts_with("process") { rank } else { resource as usize };
        match name {
            Some(name) => push_quoted(&mut self.text, name),
            None => _ = write!(self.text, "{place}"),
        }
        self.text.push_str("}}");
    }

    /// Appends a span.
    pub fn span(&mut self, span: &TraceSpan<'_>) {
        let TraceSpan { track: Track { rank, resource }, start, end, step, .. } = *span;
        self.begin();
        self.text.push_str("{\"ph\":\"X\",\"name\":");
        push_quoted(&mut self.text, span.name);
        self.text.push_str(",\"cat\":");
        push_quoted(&mut self.text, span.category);
        let _ = write!(self.text, ",\"pid\":{rank},\"tid\":{resource},\"ts\":");
        push_micros(&mut self.text, start);
        self.text.push_str(",\"dur\":");
        push_micros(&mut self.text, end.saturating_sub(start));
        let _ = write!(self.text, ",\"args\":{{\"step\":{step}");
        if let Some(task) = span.task {
            let _ = write!(self.text, ",\"task\":{task}");
        }
        self.text.push_str("}}");
    }

    /// Appends an end of an arrow at a time inside a span of the track. The two ends have equal
    /// names and ids.
    pub fn flow(&mut self, end: FlowEnd, name: &str, id: u64, track: Track, at: Duration) {
        let Track { rank, resource } = track;
        self.begin();
        let phase = match end {
            FlowEnd::Start => "\"s\"",
            // The arrow points to the span around it, not to the next one.
            FlowEnd::Finish => "\"f\",\"bp\":\"e\"",
        };
        let _ = write!(self.text, "{{\"ph\":{phase},\"name\":");
        push_quoted(&mut self.text, name);
        let _ = write!(
            self.text,
            ",\"cat\":\"message\",\"id\":\"{id:#x}\",\"pid\":{rank},\"tid\":{resource},\"ts\":"
        );
        push_micros(&mut self.text, at);
        self.text.push('}');
    }

    /// The events.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Text after the events of a file, with notes for people: names and texts.
    pub fn tail(notes: &[(String, String)]) -> String {
        let mut text = "\n],\"otherData\":{".to_owned();
        for (index, (name, note)) in notes.iter().enumerate() {
            text.push_str(if index == 0 { "" } else { "," });
            push_quoted(&mut text, name);
            text.push(':');
            push_quoted(&mut text, note);
        }
        text + "}}\n"
    }

    fn begin(&mut self) {
        if !self.text.is_empty() {
            self.text.push_str(",\n");
        }
    }
}

/// Microseconds, exact to the nanosecond.
fn push_micros(text: &mut String, time: Duration) {
    let nanos = time.as_nanos();
    let _ = write!(text, "{}.{:03}", nanos / 1000, nanos % 1000);
}

fn push_quoted(text: &mut String, plain: &str) {
    text.push('"');
    for letter in plain.chars() {
        match letter {
            '"' | '\\' => {
                text.push('\\');
                text.push(letter);
            }
            letter if u32::from(letter) < 0x20 => _ = write!(text, "\\u{:04x}", u32::from(letter)),
            letter => text.push(letter),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_events_are_those_of_the_format() {
        let track = Track { rank: 3, resource: 1 };
        let mut text = TraceText::default();
        text.name_rank(3, "rank 3");
        text.name_track(track, "compute");
        text.span(&TraceSpan {
            track,
            name: "a \"b\" \\ c\n",
            category: "forward",
            start: Duration::from_nanos(1_000_007),
            end: Duration::from_micros(1_002),
            step: 64,
            task: Some(9),
        });
        let at = Duration::from_nanos(1_000_500);
        text.flow(FlowEnd::Start, "activation", 0xab, track, at);
        text.flow(FlowEnd::Finish, "activation", 0xab, track, at);
        let notes = [("clock".to_owned(), "shared".to_owned())];
        let file = format!("{}{}{}", TraceText::HEAD, text.as_str(), TraceText::tail(&notes));
        let read: Value = serde_json::from_str(&file).unwrap();
        assert_eq!(read["otherData"], json!({"clock": "shared"}));
        let events = read["traceEvents"].as_array().unwrap();
        assert_eq!(
            events[0],
            json!({"ph": "M", "name": "process_name", "pid": 3, "tid": 0,
                   "args": {"name": "rank 3"}})
        );
        assert_eq!(events[1]["args"], json!({"sort_index": 3}));
        assert_eq!(events[2]["args"], json!({"name": "compute"}));
        assert_eq!(events[3]["args"], json!({"sort_index": 1}));
        assert_eq!(
            events[4],
            json!({"ph": "X", "name": "a \"b\" \\ c\n", "cat": "forward", "pid": 3, "tid": 1,
                   "ts": 1000.007, "dur": 1.993, "args": {"step": 64, "task": 9}})
        );
        let arrow = |phase: &str| {
            json!({"ph": phase, "name": "activation", "cat": "message", "id": "0xab", "pid": 3,
                   "tid": 1, "ts": 1000.5})
        };
        assert_eq!(events[5], arrow("s"));
        let mut finish = arrow("f");
        finish["bp"] = json!("e");
        assert_eq!(events[6], finish);
    }
}
