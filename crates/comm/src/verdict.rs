//! Verdict on a failed group: the failed rank and the cause, equal on every remaining rank.
//!
//! When a rank dies, every rank that waits for it detects something different: a process that
//! ended, a stream that closed, a deadline that passed. So a rank does not return its finding at
//! once. It sends a *report*: the rank it blames, how the failure was detected, and in which call.
//! The ranks agree on one of the reports, and every rank returns that one.
//!
//! The transport implements the agreement. In shared memory the first report wins, by one
//! compare-and-swap on a word that all ranks of a host see. Over TCP every rank sends its report,
//! or the first that it has received, to every other one, and all apply `decide` to the same
//! reports.
//!
//! A timeout is the weakest evidence, because the blamed rank may itself wait for another. Reports
//! of timeouts therefore form a chain of waits, and `decide` follows it to the rank that waits
//! for none.

use std::fmt;

use lockstep_config::Blame;
use lockstep_mesh::Rank;

use crate::label::Label;
use crate::signature::Signature;

/// Report of a failure; the verdict is the one that all ranks agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Epoch of the failure: number of failures recovered from in place before it.
    pub epoch: u64,
    /// The failed rank.
    pub culprit: Rank,
    /// Its process, if known.
    pub process: Option<Process>,
    /// The cause.
    pub cause: Cause,
    /// The rank that detected the failure.
    pub noticed_by: Rank,
    /// The call of the detecting rank.
    pub call: Signature,
    /// Number of the call in its group, counted from 1, or the tag of a message.
    pub number: u64,
    /// Name of the group: `world`, or the axis.
    pub group: String,
    /// Label of the call.
    pub label: Label,
    /// Bytes exchanged before the failure.
    pub done_bytes: u64,
    /// Bytes of the whole call.
    pub expected_bytes: u64,
}

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The host's name.
    pub host: String,
    /// Process id.
    pub id: u32,
}

/// Cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The failed rank made a different call than the detecting rank.
    Mismatch {
        /// Signature of that call.
        theirs: Signature,
    },
    /// The failed rank died or left.
    Lost {
        /// How that was detected.
        reason: String,
    },
    /// The failed rank did not arrive before the deadline.
    Timeout {
        /// The deadline.
        deadline_ms: u64,
    },
}

impl Verdict {
    /// The party that must act.
    pub fn blame(&self) -> Blame {
        match self.cause {
            Cause::Mismatch { .. } => Blame::User,
            Cause::Lost { .. } | Cause::Timeout { .. } => Blame::Peer(self.culprit.0),
        }
    }

    /// Whether the cause is a timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self.cause, Cause::Timeout { .. })
    }

    /// Sort key: stronger evidence first, then the lowest detecting rank. A mismatch is strongest,
    /// because a rank that made a different call may have left because of it.
    fn precedence(&self) -> (u8, usize) {
        let class = match self.cause {
            Cause::Mismatch { .. } => 0,
            Cause::Lost { .. } => 1,
            Cause::Timeout { .. } => 2,
        };
        (class, self.noticed_by.0)
    }
}

/// Decides on the verdict from the reports of all ranks, by detecting rank. Equal reports give
/// equal verdicts. At least one report must be present.
pub(crate) fn decide(reports: &[Option<Verdict>]) -> &Verdict {
    let all = || reports.iter().flatten();
    let first = all().min_by_key(|one| one.precedence()).expect("at least one report");
    if !first.is_timeout() {
        return first;
    }
    // Follow the chain of waits: a rank that waits for another is not the cause.
    let mut culprit = first.culprit;
    let waits_for = |rank: Rank| {
        let own = all().find(|one| one.noticed_by == rank)?;
        own.is_timeout().then_some(own.culprit)
    };
    for _ in 0..reports.len() {
        let Some(next) = waits_for(culprit) else { break };
        culprit = next;
    }
    // A cycle of waits has no end; then the first report decides.
    let found = all().filter(|one| one.culprit == culprit).min_by_key(|one| one.noticed_by);
    if waits_for(culprit).is_some() { first } else { found.unwrap_or(first) }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { culprit, noticed_by, call, number, group, .. } = self;
        let (done, expected) = (self.done_bytes, self.expected_bytes);
        let label = if self.label.is_none() { String::new() } else { format!(" ({})", self.label) };
        let process = match &self.process {
            Some(Process { host, id }) => format!("; rank {culprit} is process {id} on {host}"),
            None => String::new(),
        };
        match &self.cause {
            Cause::Mismatch { theirs } => write!(
                f,
                "call {number}{label} on the {group} group differs: rank {noticed_by} calls \
                 {call}, rank {culprit} calls {theirs}"
            ),
            Cause::Lost { reason } => write!(
                f,
                "rank {culprit} left during {call} on the {group} group after {done} of \
                 {expected} bytes: {reason}; call {number}{label}, detected by rank \
                 {noticed_by}{process}"
            ),
            Cause::Timeout { deadline_ms } => write!(
                f,
                "{call} on the {group} group waited {deadline_ms} ms for rank {culprit}, after \
                 {done} of {expected} bytes; call {number}{label}, detected by rank \
                 {noticed_by}{process}"
            ),
        }
    }
}

/// Longest encoded group name, host name or reason; longer ones are truncated.
const MAX_TEXT_BYTES: usize = 256;

/// Longest encoded verdict.
pub(crate) const MAX_VERDICT_BYTES: usize = 19 * 8 + 3 * MAX_TEXT_BYTES;

impl Verdict {
    /// Encodes the verdict: words, then texts.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, detail, theirs, reason) = match &self.cause {
            Cause::Mismatch { theirs } => (0, 0, theirs.pack(), ""),
            Cause::Lost { reason } => (1, 0, [0; 3], reason.as_str()),
            Cause::Timeout { deadline_ms } => (2, *deadline_ms, [0; 3], ""),
        };
        let (host, id) = match &self.process {
            Some(Process { host, id }) => (host.as_str(), u64::from(*id) + 1),
            None => ("", 0),
        };
        let texts = [self.group.as_str(), host, reason].map(cut);
        let [a, b, c] = self.call.pack();
        let [d, e, g] = theirs;
        let fields = [
            self.epoch,
            self.culprit.0 as u64,
            self.noticed_by.0 as u64,
            id,
            kind,
            detail,
            a,
            b,
            c,
            d,
            e,
            g,
            self.number,
            self.label.to_word(),
            self.done_bytes,
            self.expected_bytes,
        ];
        let lengths = texts.map(|text| text.len() as u64);
        let mut bytes: Vec<u8> =
            fields.iter().chain(&lengths).flat_map(|word| word.to_le_bytes()).collect();
        for text in texts {
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    /// Decodes a verdict; `None` for malformed bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (fields, _) = bytes.first_chunk::<{ 19 * 8 }>()?.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(fields[index]);
        let rank = |index: usize| usize::try_from(word(index)).ok().map(Rank);
        let mut rest = &bytes[19 * 8..];
        let mut text = |index: usize| {
            let len = usize::try_from(word(index)).ok().filter(|&len| len <= MAX_TEXT_BYTES)?;
            let (text, behind) = rest.split_at_checked(len)?;
            rest = behind;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let (group, host, reason) = (text(16)?, text(17)?, text(18)?);
        let cause = match word(4) {
            0 => Cause::Mismatch { theirs: Signature::unpack([word(9), word(10), word(11)]) },
            1 => Cause::Lost { reason },
            2 => Cause::Timeout { deadline_ms: word(5) },
            _ => return None,
        };
        let id = word(3).checked_sub(1).map(u32::try_from).transpose().ok()?;
        Some(Self {
            epoch: word(0),
            culprit: rank(1)?,
            noticed_by: rank(2)?,
            process: id.map(|id| Process { host, id }),
            cause,
            call: Signature::unpack([word(6), word(7), word(8)]),
            number: word(12),
            group,
            label: Label::from_word(word(13)),
            done_bytes: word(14),
            expected_bytes: word(15),
        })
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;

    fn report(by: usize, culprit: usize, cause: Cause) -> Verdict {
        Verdict {
            epoch: 0,
            culprit: Rank(culprit),
            process: Some(Process { host: "nut".to_owned(), id: 77 }),
            cause,
            noticed_by: Rank(by),
            call: Signature::message(Dtype::F32, 4),
            number: 9,
            group: "data".to_owned(),
            label: Label::bucket(3, 17),
            done_bytes: 8,
            expected_bytes: 16,
        }
    }

    fn timed_out(by: usize, culprit: usize) -> Verdict {
        report(by, culprit, Cause::Timeout { deadline_ms: 100 })
    }

    fn lost(by: usize, culprit: usize) -> Verdict {
        report(by, culprit, Cause::Lost { reason: "its process ended".to_owned() })
    }

    #[test]
    fn the_end_of_a_chain_of_waits_is_blamed() {
        // 0 waits for 1, 1 for 2, 2 for 3, and 3 reports nothing.
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 2)), Some(timed_out(2, 3)), None];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
        // Two wait for it directly: the lower one decides.
        let reports = [Some(timed_out(0, 3)), Some(timed_out(1, 3)), Some(timed_out(2, 1)), None];
        assert_eq!(decide(&reports), reports[0].as_ref().unwrap());
        // Rank 0 failed.
        let reports = [None, Some(timed_out(1, 2)), Some(timed_out(2, 0))];
        assert_eq!(decide(&reports).culprit, Rank(0));
        // A cycle has no end; all ranks must still reach the same verdict.
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 0)), Some(timed_out(2, 0))];
        assert_eq!(decide(&reports), reports[0].as_ref().unwrap());
    }

    #[test]
    fn a_death_outweighs_a_timeout() {
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 2)), Some(lost(2, 3)), None];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
        let theirs = Signature::message(Dtype::U8, 4);
        let mismatch = Some(report(2, 0, Cause::Mismatch { theirs }));
        let reports = [None, Some(lost(1, 0)), mismatch];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
    }

    #[test]
    fn a_verdict_renders_as_a_sentence() {
        assert_eq!(
            lost(0, 2).to_string(),
            "rank 2 left during send and receive of 4 f32 on the data group after 8 of 16 bytes: \
             its process ended; call 9 (bucket 3 of step 17), detected by rank 0; rank 2 is \
             process 77 on nut"
        );
    }

    proptest! {
        #[test]
        fn verdicts_survive_encoding(
            fields: [u64; 3],
            numbers: [u32; 8],
            texts in prop::array::uniform3(".{0,60}"),
            kind in 0..3,
        ) {
            let [group, host, reason] = texts;
            let cause = match kind {
                0 => Cause::Mismatch { theirs: Signature::unpack(fields) },
                1 => Cause::Lost { reason },
                _ => Cause::Timeout { deadline_ms: fields[0] },
            };
            let [a, b, c, d, e, f, g, h] = numbers;
            let verdict = Verdict {
                epoch: a.into(),
                culprit: Rank(b as usize),
                process: (c % 2 == 0).then_some(Process { host, id: c / 2 }),
                cause,
                noticed_by: Rank(d as usize),
                call: Signature::unpack(fields),
                number: e.into(),
                group,
                label: Label::from_word(fields[1]),
                done_bytes: f.into(),
                expected_bytes: u64::from(g) << 32 | u64::from(h),
            };
            let bytes = verdict.encode();
            prop_assert!(bytes.len() <= MAX_VERDICT_BYTES);
            prop_assert_eq!(Verdict::decode(&bytes), Some(verdict));
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Verdict::decode(&bytes);
        }
    }
}
