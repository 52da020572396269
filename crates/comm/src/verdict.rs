//! Who is to blame when a group fails: one verdict, the same on every rank that is left.
//!
//! When a rank dies, everybody who waits for it notices something, and everybody something else:
//! a process that ended, a stream that closed, a deadline that passed. Told as they are, these
//! make as many culprits as there are witnesses. So a rank that notices something does not return
//! it at once. It makes a *statement*: whom it blames, how it was noticed, and in which call. The
//! ranks settle on one of the statements, and every rank returns that one.
//!
//! How they settle is up to the transport. In shared memory the first statement wins, by one
//! compare-and-swap on a word that all ranks of a host see. Over TCP every rank sends its
//! statement, or the first that it has heard, to every other one, and all apply the same rule to
//! the same statements.
//!
//! A deadline is the weakest of witnesses: whoever is late may itself wait for somebody. Statements
//! about lateness therefore say who waits for whom, and the rule follows them to the rank that
//! waits for nobody.

use std::fmt;

use lockstep_config::Blame;
use lockstep_mesh::Rank;

use crate::label::Label;
use crate::signature::Signature;

/// What the ranks settled on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Which of the groups that were formed one after the other, counted from 0.
    pub epoch: u64,
    /// Who is to blame.
    pub culprit: Rank,
    /// Where it runs; nothing where nobody knows.
    pub process: Option<Process>,
    /// How it was noticed.
    pub cause: Cause,
    /// Who noticed it.
    pub noticed_by: Rank,
    /// The call that failed there.
    pub call: Signature,
    /// Which call of the group, counted from 1, or the tag of a message.
    pub number: u64,
    /// The group, as errors call it: `world`, or the axis.
    pub group: String,
    /// What the call was for, where it was said.
    pub label: Label,
    /// Bytes exchanged before.
    pub done_bytes: u64,
    /// Bytes the call exchanges.
    pub expected_bytes: u64,
}

/// A process of some host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The host's name.
    pub host: String,
    /// Its number there.
    pub id: u32,
}

/// How a failure was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The culprit made another call than the rank that noticed it.
    Mismatch {
        /// What it called.
        theirs: Signature,
    },
    /// The culprit is gone.
    Lost {
        /// What was seen of it.
        reason: String,
    },
    /// The culprit did not come.
    Timeout {
        /// How long it was waited for.
        deadline_ms: u64,
    },
}

impl Verdict {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self.cause {
            Cause::Mismatch { .. } => Blame::User,
            Cause::Lost { .. } | Cause::Timeout { .. } => Blame::Peer(self.culprit.0),
        }
    }

    /// Whether a rank was merely late.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self.cause, Cause::Timeout { .. })
    }

    /// What counts more comes first; of equals, what the lowest rank says. A rank that made
    /// another call may have left because of it, so that counts most.
    fn precedence(&self) -> (u8, usize) {
        let class = match self.cause {
            Cause::Mismatch { .. } => 0,
            Cause::Lost { .. } => 1,
            Cause::Timeout { .. } => 2,
        };
        (class, self.noticed_by.0)
    }
}

/// The verdict that follows from all ranks' statements; everybody who knows the same
/// statements comes to the same. At least one must be there.
pub(crate) fn decide(reports: &[Option<Verdict>]) -> &Verdict {
    let all = || reports.iter().flatten();
    let first = all().min_by_key(|one| one.precedence()).expect("somebody has made a statement");
    if !first.is_timeout() {
        return first;
    }
    // Who waits for somebody is not the one.
    let mut culprit = first.culprit;
    let waits_for = |rank: Rank| {
        let own = all().find(|one| one.noticed_by == rank)?;
        own.is_timeout().then_some(own.culprit)
    };
    for _ in 0..reports.len() {
        let Some(next) = waits_for(culprit) else { break };
        culprit = next;
    }
    // In a circle everybody waits; then whoever was named first must do.
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
                 {expected} bytes: {reason}; call {number}{label}, seen by rank \
                 {noticed_by}{process}"
            ),
            Cause::Timeout { deadline_ms } => write!(
                f,
                "{call} on the {group} group waited {deadline_ms} ms for rank {culprit}, after \
                 {done} of {expected} bytes; call {number}{label}, seen by rank \
                 {noticed_by}{process}"
            ),
        }
    }
}

/// The longest group name, host name or reason that travels; the rest is cut off.
const MAX_TEXT_BYTES: usize = 256;

/// No encoded verdict is longer.
pub(crate) const MAX_VERDICT_BYTES: usize = 19 * 8 + 3 * MAX_TEXT_BYTES;

impl Verdict {
    /// The bytes that travel: words, then texts.
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

    /// Reads what [`Self::encode`] wrote; nothing if the bytes are something else.
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
    fn whoever_everybody_waits_for_in_the_end_is_to_blame() {
        // 0 waits for 1, 1 for 2, 2 for 3, and 3 says nothing.
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 2)), Some(timed_out(2, 3)), None];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
        // Two wait for it directly: the lower one is heard.
        let reports = [Some(timed_out(0, 3)), Some(timed_out(1, 3)), Some(timed_out(2, 1)), None];
        assert_eq!(decide(&reports), reports[0].as_ref().unwrap());
        // Rank 0 is the culprit.
        let reports = [None, Some(timed_out(1, 2)), Some(timed_out(2, 0))];
        assert_eq!(decide(&reports).culprit, Rank(0));
        // A circle has no end, and everybody must come to the same all the same.
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 0)), Some(timed_out(2, 0))];
        assert_eq!(decide(&reports), reports[0].as_ref().unwrap());
    }

    #[test]
    fn a_death_counts_more_than_a_deadline_whoever_saw_it() {
        let reports = [Some(timed_out(0, 1)), Some(timed_out(1, 2)), Some(lost(2, 3)), None];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
        let theirs = Signature::message(Dtype::U8, 4);
        let mismatch = Some(report(2, 0, Cause::Mismatch { theirs }));
        let reports = [None, Some(lost(1, 0)), mismatch];
        assert_eq!(decide(&reports), reports[2].as_ref().unwrap());
    }

    #[test]
    fn a_verdict_reads_as_people_would_say_it() {
        assert_eq!(
            lost(0, 2).to_string(),
            "rank 2 left during send and receive of 4 f32 on the data group after 8 of 16 bytes: \
             its process ended; call 9 (bucket 3 of step 17), seen by rank 0; rank 2 is process 77 \
             on nut"
        );
    }

    proptest! {
        #[test]
        fn verdicts_survive_the_way(
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
        fn any_bytes_are_a_verdict_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Verdict::decode(&bytes);
        }
    }
}
