//! Agreement on one verdict over TCP: all ranks exchange their failure reports.
//!
//! A rank that detects a failure first reads its control streams and adopts a report that has
//! already arrived. Then it sends its report to every rank on every channel, waits for the reports
//! of the others, and applies [`decide`] to all of them. A rank that receives a report does the
//! same, so every rank sends one report and receives one from every other rank, and all reach the
//! same verdict. Ranks that left, closed their streams or are themselves reported as lost are not
//! awaited. Every wait is bounded by a short timeout, so a rank that is stopped or busy delays the
//! agreement by that timeout at most.
//!
//! A report of a timeout is not adopted by a rank that waits for a third one; it reports the rank
//! that it waits for itself, because only all these reports together show where the chain of waits
//! ends. A rank that is itself reported as timed out contradicts only if it ran and waited
//! throughout; a rank that was stopped and resumes adopts the report.

use std::io::Write;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Interest};

use super::TcpTransport;
use super::control::{self, Control};
use super::peer_error::{PeerError, reason};
use crate::error::Interruption;
use crate::transport::{MAX_SILENCE, POLL_INTERVAL, SLOW_PEER_WARNING};
use crate::verdict::{Cause, Process, Verdict, decide};

/// How long the last report of a lost peer may still be in transit.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_millis(50);

/// How long the other ranks have to send their reports.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Detects whether a waiting rank ran throughout its wait or was stopped.
#[derive(Default)]
pub(super) struct Liveness {
    since: Duration,
    last_check: Duration,
}

impl Liveness {
    /// Records that the rank runs.
    pub(super) fn check(&mut self, now: Duration) {
        if now.saturating_sub(self.last_check) >= MAX_SILENCE {
            self.since = now;
        }
        self.last_check = now;
    }

    /// How long the rank has been running without interruption.
    fn awake_for(&self, now: Duration) -> Duration {
        let is_awake = now.saturating_sub(self.last_check) < MAX_SILENCE;
        if is_awake { now.saturating_sub(self.since) } else { Duration::ZERO }
    }
}

impl TcpTransport {
    /// Returns the recorded failure of any channel, if there is one.
    pub(super) fn check_failure(&self) -> Result<(), Interruption> {
        if let Some(verdict) = self.failure.verdict.get() {
            return Err(Interruption::Reported(Box::new(verdict.clone())));
        }
        self.failure.first.get().cloned().map_or(Ok(()), Err)
    }

    /// Records that the channels have failed; the first cause counts.
    pub(crate) fn record_failure(&self, why: Interruption) -> Interruption {
        self.failure.first.get_or_init(|| why.clone());
        why
    }

    /// Reads the control streams, all or only the ready ones, and returns a report as interruption.
    pub(crate) fn check_reports(&mut self, only_ready: bool) -> Result<(), Interruption> {
        let dead = self.poll_controls(only_ready);
        if let Some(report) = self.known_report() {
            let awaited_rank = self.awaited_rank();
            let contradicts = awaited_rank != self.rank && self.may_contradict(&report);
            return Err(self.record_failure(if contradicts {
                Interruption::Deadline { peer: awaited_rank }
            } else {
                Interruption::Reported(Box::new(report))
            }));
        }
        match dead {
            Some((peer, error)) => Err(self.peer_failed(peer, error)),
            None => Ok(()),
        }
    }

    /// Whether this rank may contradict a report of a timeout: if another rank timed out, or if
    /// this rank ran and waited for most of that time.
    fn may_contradict(&self, report: &Verdict) -> bool {
        let Cause::Timeout { deadline_ms } = report.cause else { return false };
        let most = Duration::from_millis(deadline_ms / 2).min(MAX_SILENCE);
        report.culprit != self.rank || self.liveness.awake_for(self.world.clock().now()) >= most
    }

    /// Reads the control streams; returns the first that has ended or violates the protocol. The
    /// end of an expendable rank counts only while the round has unfinished messages with it.
    fn poll_controls(&mut self, only_ready: bool) -> Option<(Rank, PeerError)> {
        let mut dead = None;
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(control) = link.control.stream() else { continue };
            if only_ready && !self.set.is_ready(control) {
                continue;
            }
            if let Err(error) = link.control.poll(&mut *self.set) {
                let counts = !self.failure.is_expendable(link.peer) || self.active.contains(&index);
                dead = dead.or(counts.then_some((link.peer, error)));
            }
            if link.control.stream().is_none() {
                self.set.watch(control, Interest::default());
            }
        }
        dead
    }

    /// The report of another rank that takes precedence, if there is any. Reports about ranks
    /// outside the world are ignored.
    fn known_report(&self) -> Option<Verdict> {
        let mut reports: Vec<Option<Verdict>> = vec![None; self.num_ranks];
        for link in &self.links {
            let found = link.control.report(self.epoch);
            reports[link.peer.0] =
                found.filter(|report| report.culprit.0 < self.num_ranks).cloned();
        }
        reports.iter().flatten().next()?;
        let about_this_rank = reports.iter().flatten().find(|report| report.culprit == self.rank);
        Some(about_this_rank.unwrap_or_else(|| decide(&reports)).clone())
    }

    /// The interruption for a failed peer. A report that it sent before it closed its streams is
    /// more precise than the end of a stream.
    #[cold]
    pub(super) fn fail(&mut self, peer: Rank, error: PeerError) -> Interruption {
        if matches!(error, PeerError::Closed | PeerError::Io(_)) {
            for stream in self.links.iter().flat_map(|link| link.sender.streams()) {
                self.set.watch(stream, Interest::default());
            }
            let link = self.link_of[peer.0].expect("there is a connection to it");
            if let Some(control) = self.links[link].control.stream() {
                self.set.watch(control, Interest { read: true, write: false });
                let _ = self.set.wait(None, FINAL_REPORT_TIMEOUT);
            }
            let _ = self.poll_controls(false);
            if let Some(report) = self.known_report() {
                return self.record_failure(Interruption::Reported(Box::new(report)));
            }
        }
        self.peer_failed(peer, error)
    }

    /// Whether a rank is expendable.
    pub(crate) fn is_expendable(&self, peer: Rank) -> bool {
        self.failure.is_expendable(peer)
    }

    /// Whether an expendable rank has died.
    pub(crate) fn is_dead(&self, peer: Rank) -> bool {
        let link = self.link_of[peer.0].map(|link| &self.links[link]);
        self.failure.is_expendable(peer) && link.is_some_and(|link| link.control.stream().is_none())
    }

    pub(super) fn peer_failed(&self, peer: Rank, error: PeerError) -> Interruption {
        let link = self.link_of[peer.0].expect("there is a connection to it");
        let interruption = match error {
            PeerError::Mismatch(theirs) => Interruption::Mismatch { peer, theirs, number: None },
            PeerError::EarlierMismatch(number, theirs) => {
                Interruption::Mismatch { peer, theirs, number: Some(number) }
            }
            PeerError::Protocol(reason) => Interruption::Lost { peer, reason },
            PeerError::Closed | PeerError::Io(_) if self.links[link].control.has_left() => {
                Interruption::Lost { peer, reason: "it has left the run".to_owned() }
            }
            PeerError::Closed => {
                Interruption::Lost { peer, reason: "it closed the connection".to_owned() }
            }
            PeerError::Io(error) => Interruption::Lost { peer, reason: reason(&error) },
        };
        if self.failure.is_expendable(peer) && matches!(interruption, Interruption::Lost { .. }) {
            return interruption;
        }
        self.record_failure(interruption)
    }

    /// Warns the user about a long wait, once per wait.
    #[cold]
    pub(crate) fn warn(&mut self) {
        let _ = self.poll_controls(false);
        let peer = self.awaited_rank();
        let link = self.link_of[peer.0].map(|link| &self.links[link]);
        let process = match link.and_then(|link| link.control.process()) {
            Some(Process { host, id }) => format!(" (process {id} on {host})"),
            None => String::new(),
        };
        let (own, seconds) = (self.rank, SLOW_PEER_WARNING.as_secs());
        let line = format!("warning: rank {own} waits for rank {peer}{process} for {seconds} s\n");
        // A closed standard error is ignored.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Exchanges reports, and returns the verdict that all ranks agree on.
    #[cold]
    pub(super) fn run_agreement(&mut self, report: Verdict) -> Verdict {
        let failure = Arc::clone(&self.failure);
        // A panic leaves no partial state here.
        let _guard = failure.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verdict) = failure.verdict.get() {
            return verdict.clone();
        }
        let _ = self.poll_controls(false);
        let own = self.own_report(report);
        self.send_report(&own);
        self.wait_for_reports(&own);
        let mut reports = vec![None; self.num_ranks];
        for link in &self.links {
            reports[link.peer.0] = link.control.report(self.epoch).cloned();
        }
        reports[self.rank.0] = Some(own);
        let verdict = decide(&reports).clone();
        self.record_failure(Interruption::Reported(Box::new(verdict.clone())));
        failure.verdict.get_or_init(|| verdict).clone()
    }

    /// This rank's report: a received one, unless this rank may contradict it.
    fn own_report(&self, report: Verdict) -> Verdict {
        let mut own = match self.known_report() {
            Some(known) if !self.may_contradict(&known) || report.culprit == self.rank => known,
            _ => report,
        };
        if own.process.is_none() {
            let link = self.link_of.get(own.culprit.0).copied().flatten();
            own.process = link.and_then(|link| self.links[link].control.process().cloned());
        }
        own
    }

    fn send_report(&mut self, report: &Verdict) {
        let message = control::encode_report(report);
        for link in &self.links {
            link.control.send(&mut *self.set, &message);
        }
        for (_, control) in &mut self.control_copies {
            control.set_deadline(Some(Duration::ZERO));
            // The stream is almost always empty: the write fits, or the peer has closed it.
            let _ = control.write(&message);
        }
    }

    fn wait_for_reports(&mut self, own: &Verdict) {
        let deadline = Deadline::after(self.world.clock(), AGREEMENT_TIMEOUT);
        loop {
            let reports = self.links.iter().filter_map(|link| link.control.report(self.epoch));
            let is_lost = |report: &Verdict| matches!(report.cause, Cause::Lost { .. });
            let lost: Vec<Rank> = reports
                .chain([own])
                .filter(|report| is_lost(report))
                .map(|report| report.culprit)
                .collect();
            let is_awaited = |peer: Rank, control: &Control| {
                control.report(self.epoch).is_none() && !lost.contains(&peer)
            };
            let mut is_any_missing = false;
            for link in &self.links {
                for stream in link.sender.streams() {
                    self.set.watch(stream, Interest::default());
                }
                let Some(stream) = link.control.stream() else { continue };
                let read = is_awaited(link.peer, &link.control);
                is_any_missing |= read;
                self.set.watch(stream, Interest { read, write: false });
            }
            let remaining = deadline.remaining(self.world.clock());
            if !is_any_missing || remaining.is_zero() {
                return;
            }
            let _ = self.set.wait(None, remaining.min(POLL_INTERVAL));
            let _ = self.poll_controls(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_rank_does_not_count_as_running() {
        let at = Duration::from_millis;
        let mut liveness = Liveness::default();
        for now in (10_000..12_000).step_by(20) {
            liveness.check(at(now));
        }
        assert_eq!(liveness.awake_for(at(12_000)), at(2_000));
        assert_eq!(liveness.awake_for(at(15_000)), Duration::ZERO, "it resumes at this moment");
        liveness.check(at(15_000));
        assert_eq!(liveness.awake_for(at(15_010)), at(10));
    }
}
