//! Agreement on one verdict among the ranks of a host: the first report wins.
//!
//! A rank writes its report into its own segment and then tries to put its number, by
//! compare-and-swap, into one word that all ranks see, in the segment of the lowest of them. The
//! first rank succeeds, and every rank reads the report of that one. A segment outlives its process
//! while any rank maps it, so a rank may die at any point.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Segment};

use super::header::{self, Header};
use super::{SharedWorld, header::VERDICT};
use crate::verdict::{Cause, Process, Verdict};

/// How long another thread of this rank may take to write the report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

impl SharedWorld {
    /// Reports a failure, and returns the verdict of the host.
    #[cold]
    pub(crate) fn agree_on_verdict(&self, mut report: Verdict) -> Verdict {
        if let Some(verdict) = self.verdict() {
            return verdict;
        }
        let reporting = self.own().word(header::REPORTING);
        if reporting.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            report.process = report.process.take().or_else(|| self.process_of(report.culprit));
            Header::write_report(self.own(), &report.encode());
            let own = self.rank.0 as u64 + 1;
            let word = self.lowest().word(VERDICT);
            let _ = word.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed);
            for rank in (0..self.segments.len()).map(Rank).filter(|&rank| self.sees(rank)) {
                self.ring_doorbell(rank);
            }
        }
        let deadline = Deadline::after(self.world.clock(), REPORT_TIMEOUT);
        loop {
            match self.verdict() {
                Some(verdict) => return verdict,
                None if deadline.has_passed(self.world.clock()) => return report,
                None => self.world.shared().yield_now(),
            }
        }
    }

    /// The verdict, if there is one.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let word = self.lowest().word(VERDICT).load(Ordering::Acquire);
        let reporter = Rank(usize::try_from(word).ok()?.checked_sub(1)?);
        let segment = self.segments.get(reporter.0)?.as_ref()?;
        let verdict = Verdict::decode(&Header::read_report(segment));
        let is_sound = |verdict: &Verdict| verdict.culprit.0 < self.segments.len();
        Some(verdict.filter(is_sound).unwrap_or_else(|| self.malformed_report(reporter)))
    }

    /// Process of a rank of this host.
    pub(crate) fn process_of(&self, rank: Rank) -> Option<Process> {
        let (id, host) = Header::read_process(self.segments.get(rank.0)?.as_ref()?);
        Some(Process { host, id })
    }

    /// The segment of the lowest rank of the host, equal for all of them.
    fn lowest(&self) -> &Segment {
        self.segments.iter().flatten().next().expect("a rank sees its own memory")
    }

    /// Verdict against a rank whose report cannot be decoded.
    fn malformed_report(&self, reporter: Rank) -> Verdict {
        Verdict {
            epoch: 0,
            culprit: reporter,
            process: self.process_of(reporter),
            cause: Cause::Lost { reason: "its failure report is malformed".to_owned() },
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
