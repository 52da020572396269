//! Flight recorder dump of a rank: one JSON value, with a line for every call.
//!
//! The JSON is written by hand: it has a dozen fields, and the crate needs no other. `lockstep
//! doctor` reads it.

use std::fmt::Write;

use lockstep_mesh::Rank;

use super::{CallRecord, GroupRecord, Progress, RecordRegion};
use crate::verdict::{Process, Verdict};

/// Version of the format.
const VERSION: u32 = 1;

/// A dump: the records and their context.
pub(crate) struct Dump<'a> {
    pub(crate) rank: Rank,
    pub(crate) num_ranks: usize,
    pub(crate) epoch: u64,
    pub(crate) written_by: Rank,
    pub(crate) process: Option<Process>,
    pub(crate) verdict: Option<&'a Verdict>,
    pub(crate) region: &'a RecordRegion,
}

/// File name of the dump of a rank.
pub(crate) fn file_name(rank: Rank) -> String {
    format!("flight-rank-{rank}.json")
}

impl Dump<'_> {
    /// Renders the file.
    pub(crate) fn to_json(&self) -> String {
        let (groups, records) = (self.region.groups(), self.region.records());
        let (host, id) = match &self.process {
            Some(Process { host, id }) => (text(host), id.to_string()),
            None => ("null".to_owned(), "null".to_owned()),
        };
        let (verdict, culprit) = match self.verdict {
            Some(verdict) => (text(&verdict.to_string()), verdict.culprit.to_string()),
            None => ("null".to_owned(), "null".to_owned()),
        };
        let mut json = format!(
            "{{\"version\": {VERSION}, \"rank\": {}, \"num_ranks\": {}, \"epoch\": {}, \
             \"written_by\": {}, \"host\": {host}, \"process\": {id}, \"culprit\": {culprit}, \
             \"verdict\": {verdict},\n\"groups\": [",
            self.rank, self.num_ranks, self.epoch, self.written_by
        );
        for (index, group) in groups.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let GroupRecord { id, name, group_size, first_rank } = group;
            let _ = write!(
                json,
                "{comma}\n{{\"id\": {id}, \"name\": {}, \"group_size\": {group_size}, \
                 \"first_rank\": {first_rank}}}",
                text(name)
            );
        }
        json.push_str("],\n\"calls\": [");
        for (index, record) in records.iter().enumerate() {
            json.push_str(if index == 0 { "\n" } else { ",\n" });
            push_record(&mut json, record);
        }
        json.push_str("]}\n");
        json
    }
}

fn push_record(json: &mut String, record: &CallRecord) {
    let (state, end_ns, done_bytes) = match record.progress {
        Progress::Running => ("running", "null".to_owned(), "null".to_owned()),
        Progress::Ended(at) => ("ended", at.as_nanos().to_string(), "null".to_owned()),
        Progress::Failed(bytes) => ("failed", "null".to_owned(), bytes.to_string()),
    };
    let _ = write!(
        json,
        "{{\"sequence\": {}, \"group\": {}, \"channel\": {}, \"number\": {}, \"call\": {}, \
         \"message\": {}, \"bytes\": {}, \"label\": {}, \"start_ns\": {}, \"state\": \"{state}\", \
         \"end_ns\": {end_ns}, \"done_bytes\": {done_bytes}}}",
        record.sequence,
        record.group,
        record.channel,
        record.number,
        text(&record.signature.to_string()),
        record.signature.is_message(),
        record.signature.bytes(),
        text(&record.label.to_string()),
        record.start.as_nanos(),
    );
}

/// Quotes a string.
fn text(plain: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in plain.chars() {
        match letter {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(letter);
            }
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(text("a \"b\" \\ c\n"), "\"a \\\"b\\\" \\\\ c\\u000a\"");
    }
}
