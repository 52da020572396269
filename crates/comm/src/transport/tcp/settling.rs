//! One verdict for all ranks that are joined by streams.
//!
//! A rank that notices a failure first listens: if somebody has made a statement already, that is
//! taken over. Then it sends its statement to everybody, on every lane, waits for theirs, and
//! applies the [rule](crate::verdict) to all of them. Whoever hears a statement does the same, so
//! every rank sends one and gets one from everybody else, and all come to the same verdict. Ranks
//! that have left, whose streams are closed, or whose death is what it is all about are not waited
//! for; nor is anybody for longer than a moment, so a rank that neither dies nor answers, because
//! it is frozen or computes, costs that moment and cannot hold up the others.
//!
//! A rank that hears somebody say that a third one is late does not take that over. It answers
//! whom it waits for itself: only all these answers together show who is to blame. Nor does one
//! that is itself called late, if it was awake and waited for somebody all the while; but one that
//! was frozen, and hears it when it wakes up, does.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Interest};

use super::control::{self, Control};
use super::trouble::{Trouble, reason};
use super::{LOOK_AROUND, TcpTransport};
use crate::error::Interruption;
use crate::verdict::{Cause, Process, Verdict, rule};

/// How long a lost peer's last words may still be on their way.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// How long others have to make a statement.
const SETTLING: Duration = Duration::from_secs(1);

/// After so long a wait a person is told.
pub(crate) const WARNING: Duration = Duration::from_secs(5);

/// A rank that waits and has not looked around for so long did not run.
const SILENCE: Duration = Duration::from_millis(500);

/// Whether a rank that waits was awake all the while.
#[derive(Default)]
pub(super) struct Awake {
    since: Duration,
    last_look: Duration,
}

impl Awake {
    /// Looks around.
    pub(super) fn look(&mut self, now: Duration) {
        if now.saturating_sub(self.last_look) >= SILENCE {
            self.since = now;
        }
        self.last_look = now;
    }

    /// How long it has been awake, and waiting.
    fn lasts(&self, now: Duration) -> Duration {
        let is_awake = now.saturating_sub(self.last_look) < SILENCE;
        if is_awake { now.saturating_sub(self.since) } else { Duration::ZERO }
    }
}

/// What has gone wrong, on all lanes of a rank.
#[derive(Default)]
pub(crate) struct Fate {
    /// The first thing.
    trouble: OnceLock<Interruption>,
    /// What all ranks settled on.
    verdict: OnceLock<Verdict>,
    /// Held by the lane that settles it.
    turn: Mutex<()>,
    /// Ranks whose death is not one of these things: it concerns only those who wait for them.
    spared: OnceLock<Vec<Rank>>,
}

impl Fate {
    /// Whether the ranks have settled on something.
    pub(super) fn is_settled(&self) -> bool {
        self.verdict.get().is_some()
    }

    /// See [`crate::transport::Transport::spare`]; the first list counts.
    pub(super) fn spare(&self, ranks: &[Rank]) {
        let _ = self.spared.set(ranks.to_vec());
    }

    pub(super) fn is_spared(&self, rank: Rank) -> bool {
        self.spared.get().is_some_and(|spared| spared.contains(&rank))
    }
}

impl TcpTransport {
    /// Whether nothing has gone wrong yet, on any lane.
    pub(super) fn check_fate(&self) -> Result<(), Interruption> {
        if let Some(verdict) = self.fate.verdict.get() {
            return Err(Interruption::Judged(Box::new(verdict.clone())));
        }
        self.fate.trouble.get().cloned().map_or(Ok(()), Err)
    }

    /// Remembers that the wires are of no use any more; the first reason counts.
    pub(crate) fn end(&self, why: Interruption) -> Interruption {
        self.fate.trouble.get_or_init(|| why.clone());
        why
    }

    /// Hears what other ranks say: all, or those that were found ready.
    pub(crate) fn listen(&mut self, only_ready: bool) -> Result<(), Interruption> {
        let dead = self.hear(only_ready);
        if let Some(statement) = self.heard() {
            let waited_for = self.waited_for();
            let knows_more = waited_for != self.rank && self.may_contradict(&statement);
            return Err(self.end(if knows_more {
                Interruption::Deadline { peer: waited_for }
            } else {
                Interruption::Judged(Box::new(statement))
            }));
        }
        match dead {
            Some((peer, trouble)) => Err(self.broken_by(peer, trouble)),
            None => Ok(()),
        }
    }

    /// Whether this rank may know better than somebody who calls a rank late: if that is another
    /// one, or if it has itself waited, awake, for most of that time.
    fn may_contradict(&self, heard: &Verdict) -> bool {
        let Cause::Late { deadline_ms } = heard.cause else { return false };
        let most = Duration::from_millis(deadline_ms / 2).min(SILENCE);
        heard.culprit != self.rank || self.awake.lasts(self.world.clock().now()) >= most
    }

    /// Reads the control streams; returns the first that has ended or makes no sense. The end of a
    /// rank that others can do without counts where the round is not done with it.
    fn hear(&mut self, only_ready: bool) -> Option<(Rank, Trouble)> {
        let mut dead = None;
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(control) = link.control.stream() else { continue };
            if only_ready && !self.set.is_ready(control) {
                continue;
            }
            if let Err(trouble) = link.control.listen(&mut *self.set) {
                let counts = !self.fate.is_spared(link.peer) || self.active.contains(&index);
                dead = dead.or(counts.then_some((link.peer, trouble)));
            }
            if link.control.stream().is_none() {
                self.set.watch(control, Interest::default());
            }
        }
        dead
    }

    /// The statement of another rank that counts most, if there is any. Whoever is named must
    /// exist.
    fn heard(&self) -> Option<Verdict> {
        let mut said: Vec<Option<Verdict>> = vec![None; self.num_ranks];
        for link in &self.links {
            let found = link.control.said(self.epoch);
            said[link.peer.0] = found.filter(|said| said.culprit.0 < self.num_ranks).cloned();
        }
        said.iter().flatten().next()?;
        let about_this_rank = said.iter().flatten().find(|said| said.culprit == self.rank);
        Some(about_this_rank.unwrap_or_else(|| rule(&said)).clone())
    }

    /// What to tell about a peer in trouble. If it made a statement before it closed its streams,
    /// that says more than the end of a stream does.
    #[cold]
    pub(super) fn fail(&mut self, peer: Rank, trouble: Trouble) -> Interruption {
        if matches!(trouble, Trouble::Closed | Trouble::Io(_)) {
            for stream in self.links.iter().flat_map(|link| link.sender.streams()) {
                self.set.watch(stream, Interest::default());
            }
            let link = self.link_of[peer.0].expect("there is a cable to it");
            if let Some(control) = self.links[link].control.stream() {
                self.set.watch(control, Interest { read: true, write: false });
                let _ = self.set.wait(None, LAST_WORDS);
            }
            let _ = self.hear(false);
            if let Some(statement) = self.heard() {
                return self.end(Interruption::Judged(Box::new(statement)));
            }
        }
        self.broken_by(peer, trouble)
    }

    /// Whether the others can do without a rank.
    pub(crate) fn is_spared(&self, peer: Rank) -> bool {
        self.fate.is_spared(peer)
    }

    /// Whether a rank has died that the others can do without.
    pub(crate) fn is_gone(&self, peer: Rank) -> bool {
        let link = self.link_of[peer.0].map(|link| &self.links[link]);
        self.fate.is_spared(peer) && link.is_some_and(|link| link.control.stream().is_none())
    }

    pub(super) fn broken_by(&self, peer: Rank, trouble: Trouble) -> Interruption {
        let link = self.link_of[peer.0].expect("there is a cable to it");
        let interruption = match trouble {
            Trouble::Mismatch(theirs) => Interruption::Mismatch { peer, theirs, number: None },
            Trouble::EarlierMismatch(number, theirs) => {
                Interruption::Mismatch { peer, theirs, number: Some(number) }
            }
            Trouble::Strange(reason) => Interruption::Lost { peer, reason },
            Trouble::Closed | Trouble::Io(_) if self.links[link].control.has_left() => {
                Interruption::Lost { peer, reason: "it has left the run".to_owned() }
            }
            Trouble::Closed => {
                Interruption::Lost { peer, reason: "it closed the connection".to_owned() }
            }
            Trouble::Io(error) => Interruption::Lost { peer, reason: reason(&error) },
        };
        if self.fate.is_spared(peer) && matches!(interruption, Interruption::Lost { .. }) {
            return interruption;
        }
        self.end(interruption)
    }

    /// Tells a person about a long wait, once a wait.
    #[cold]
    pub(crate) fn warn(&mut self) {
        let _ = self.hear(false);
        let late = self.waited_for();
        let link = self.link_of[late.0].map(|link| &self.links[link]);
        let process = match link.and_then(|link| link.control.process()) {
            Some(Process { host, id }) => format!(" (process {id} on {host})"),
            None => String::new(),
        };
        let (own, seconds) = (self.rank, WARNING.as_secs());
        let line = format!("warning: rank {own} waits for rank {late}{process} for {seconds} s\n");
        // Where nobody reads, there is nobody to warn.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Makes a statement, and returns what all settle on.
    #[cold]
    pub(super) fn settle_on(&mut self, statement: Verdict) -> Verdict {
        let fate = Arc::clone(&self.fate);
        // Nothing is left half done by a panic here.
        let _turn = fate.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verdict) = fate.verdict.get() {
            return verdict.clone();
        }
        let _ = self.hear(false);
        let own = self.own_statement(statement);
        self.tell(&own);
        self.wait_for_statements(&own);
        let mut statements = vec![None; self.num_ranks];
        for link in &self.links {
            statements[link.peer.0] = link.control.said(self.epoch).cloned();
        }
        statements[self.rank.0] = Some(own);
        let verdict = rule(&statements).clone();
        self.end(Interruption::Judged(Box::new(verdict.clone())));
        fate.verdict.get_or_init(|| verdict).clone()
    }

    /// What this rank says: what it was told, unless it knows more.
    fn own_statement(&self, statement: Verdict) -> Verdict {
        let mut own = match self.heard() {
            Some(heard) if !self.may_contradict(&heard) || statement.culprit == self.rank => heard,
            _ => statement,
        };
        if own.process.is_none() {
            let link = self.link_of.get(own.culprit.0).copied().flatten();
            own.process = link.and_then(|link| self.links[link].control.process().cloned());
        }
        own
    }

    fn tell(&mut self, statement: &Verdict) {
        let word = control::statement(statement);
        for link in &self.links {
            link.control.say(&mut *self.set, &word);
        }
        for (_, herald) in &mut self.heralds {
            herald.set_deadline(Some(Duration::ZERO));
            // There is hardly ever anything on its way there, so there is room, or nobody listens.
            let _ = herald.write(&word);
        }
    }

    fn wait_for_statements(&mut self, own: &Verdict) {
        let deadline = Deadline::after(self.world.clock(), SETTLING);
        loop {
            let said = self.links.iter().filter_map(|link| link.control.said(self.epoch));
            let is_lost = |said: &Verdict| matches!(said.cause, Cause::Lost { .. });
            let lost: Vec<Rank> =
                said.chain([own]).filter(|said| is_lost(said)).map(|said| said.culprit).collect();
            let is_awaited = |peer: Rank, control: &Control| {
                control.said(self.epoch).is_none() && !lost.contains(&peer)
            };
            let mut is_anybody_missing = false;
            for link in &self.links {
                for stream in link.sender.streams() {
                    self.set.watch(stream, Interest::default());
                }
                let Some(stream) = link.control.stream() else { continue };
                let read = is_awaited(link.peer, &link.control);
                is_anybody_missing |= read;
                self.set.watch(stream, Interest { read, write: false });
            }
            let remaining = deadline.remaining(self.world.clock());
            if !is_anybody_missing || remaining.is_zero() {
                return;
            }
            let _ = self.set.wait(None, remaining.min(LOOK_AROUND));
            let _ = self.hear(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_frozen_does_not_count_as_awake_and_one_that_looks_around_does() {
        let at = Duration::from_millis;
        let mut awake = Awake::default();
        for now in (10_000..12_000).step_by(20) {
            awake.look(at(now));
        }
        assert_eq!(awake.lasts(at(12_000)), at(2_000));
        assert_eq!(awake.lasts(at(15_000)), Duration::ZERO, "it wakes up this moment");
        awake.look(at(15_000));
        assert_eq!(awake.lasts(at(15_010)), at(10));
    }
}
