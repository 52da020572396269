//! One verdict for all ranks of a host.
//!
//! A rank that has something to say writes its statement into its own memory and then tries to put
//! its number into one word that all ranks see, in the memory of the lowest of them. The first one
//! succeeds, and everybody reads the statement of that one. Memory outlives its process as long as
//! anybody has it mapped, so it does not matter who of them dies, and when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Segment};

use super::header::{self, Header};
use super::{SharedWorld, header::VERDICT};
use crate::verdict::{Cause, Process, Verdict};

/// How long another thread of this rank may take to make its statement.
const PATIENCE: Duration = Duration::from_secs(1);

impl SharedWorld {
    /// Makes a statement, and returns the one that counts.
    #[cold]
    pub(crate) fn settle(&self, mut statement: Verdict) -> Verdict {
        if let Some(verdict) = self.judged() {
            return verdict;
        }
        let speaks = self.own().word(header::SPEAKS);
        if speaks.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            statement.process =
                statement.process.take().or_else(|| self.process_of(statement.culprit));
            Header::write_statement(self.own(), &statement.encode());
            let own = self.rank.0 as u64 + 1;
            let word = self.lowest().word(VERDICT);
            let _ = word.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed);
            for rank in (0..self.segments.len()).map(Rank).filter(|&rank| self.sees(rank)) {
                self.ring(rank);
            }
        }
        let deadline = Deadline::after(self.world.clock(), PATIENCE);
        loop {
            match self.judged() {
                Some(verdict) => return verdict,
                None if deadline.has_passed(self.world.clock()) => return statement,
                None => self.world.shared().yield_now(),
            }
        }
    }

    /// The statement that counts, if there is one.
    pub(crate) fn judged(&self) -> Option<Verdict> {
        let word = self.lowest().word(VERDICT).load(Ordering::Acquire);
        let speaker = Rank(usize::try_from(word).ok()?.checked_sub(1)?);
        let segment = self.segments.get(speaker.0)?.as_ref()?;
        let verdict = Verdict::decode(&Header::read_statement(segment));
        let is_sound = |verdict: &Verdict| verdict.culprit.0 < self.segments.len();
        Some(verdict.filter(is_sound).unwrap_or_else(|| self.unreadable(speaker)))
    }

    /// Where a rank that is seen runs.
    pub(crate) fn process_of(&self, rank: Rank) -> Option<Process> {
        let (id, host) = Header::read_process(self.segments.get(rank.0)?.as_ref()?);
        Some(Process { host, id })
    }

    /// The memory of the lowest rank of the host, which is the same for all of them.
    fn lowest(&self) -> &Segment {
        self.segments.iter().flatten().next().expect("a rank sees its own memory")
    }

    /// A rank that writes nonsense is to blame itself.
    fn unreadable(&self, speaker: Rank) -> Verdict {
        Verdict {
            epoch: 0,
            culprit: speaker,
            process: self.process_of(speaker),
            cause: Cause::Lost { reason: "its statement makes no sense".to_owned() },
            noticed_by: self.rank,
            call: crate::Signature::default(),
            number: 0,
            group: String::new(),
            label: crate::Label::NONE,
            done_bytes: 0,
            expected_bytes: 0,
        }
    }
}
