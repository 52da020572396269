//! The workers of one life of a run, as whoever started them knows them: a state machine that does
//! nothing itself.
//!
//! It hears what happened and when, and answers what is to be done. Time is an argument and
//! processes are numbers, so every order of events can be tried without any. A *life* is one start
//! of all workers; what is heard of a worker of an earlier life concerns nobody any more.

use crate::verdict::Ended;
use lockstep_platform::Exit;
use std::time::Duration;

/// How long the other workers have to end by themselves after the first failure.
pub const AFTER_FAILURE: Duration = Duration::from_secs(3);

/// The same after a worker was lost to a signal: nobody has more to say about that.
pub const AFTER_LOSS: Duration = Duration::from_secs(1);

/// How long workers have to save and to end when they were asked to.
pub const AFTER_REQUEST: Duration = Duration::from_secs(25);

/// What is to be done to all workers that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They are asked to end.
    Terminate,
    /// They are ended.
    Kill,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Membership {
    life: u64,
    is_member: Vec<bool>,
    /// Ranks that stand in for each other: of each list all but one may be lost.
    stand_ins: Vec<Vec<usize>>,
    ended: Vec<Ended>,
    /// When those that are left are ended.
    limit: Option<Duration>,
    is_asked: bool,
    is_resizing: bool,
    is_killed: bool,
}

impl Membership {
    /// So many workers that were just started.
    pub fn new(life: u64, num_workers: usize) -> Self {
        Self {
            life,
            is_member: vec![true; num_workers],
            stand_ins: Vec::new(),
            ended: Vec::new(),
            limit: None,
            is_asked: false,
            is_resizing: false,
            is_killed: false,
        }
    }

    /// The same, where of each of these lists of ranks all but one may be lost.
    #[must_use]
    pub fn with_stand_ins(self, stand_ins: &[Vec<usize>]) -> Self {
        Self { stand_ins: stand_ins.to_vec(), ..self }
    }

    /// Whether somebody is left who does what a rank did.
    fn has_stand_in(&self, rank: usize) -> bool {
        let list = self.stand_ins.iter().find(|list| list.contains(&rank));
        let is_well = |other: usize| self.is_member[other] || self.has_finished(other);
        list.is_some_and(|list| list.iter().any(|other| *other != rank && is_well(*other)))
    }

    fn has_finished(&self, rank: usize) -> bool {
        self.ended.iter().any(|end| end.rank == rank && end.exit == Exit::Code(0))
    }

    /// A worker has ended. False if that is none of this life, or known already.
    pub fn has_ended(&mut self, now: Duration, life: u64, rank: usize, exit: Exit) -> bool {
        if life != self.life || !self.is_member.get(rank).copied().unwrap_or(false) {
            return false;
        }
        self.is_member[rank] = false;
        let is_replaced = matches!(exit, Exit::Signal(_)) && self.has_stand_in(rank);
        let by_us = self.is_killed;
        self.ended.push(Ended { rank, exit, by_us, is_replaced, lines: Vec::new() });
        match exit {
            Exit::Code(0) => {}
            Exit::Signal(_) if is_replaced => {}
            Exit::Code(_) => self.limit_to(now + AFTER_FAILURE),
            Exit::Signal(_) => self.limit_to(now + AFTER_LOSS),
        }
        true
    }

    /// Somebody asked the whole run to end.
    pub fn asked_to_end(&mut self, now: Duration) -> Option<Order> {
        if std::mem::replace(&mut self.is_asked, true) {
            return None;
        }
        self.limit_to(now + AFTER_REQUEST);
        Some(Order::Terminate)
    }

    /// A life with more workers could begin: this one is to save and to end, unless it is ending
    /// already.
    pub fn can_grow(&mut self, now: Duration) -> Option<Order> {
        if self.is_asked || !self.ended.is_empty() {
            return None;
        }
        self.is_resizing = true;
        self.asked_to_end(now)
    }

    /// Whether its workers were asked to end so that more of them can begin.
    pub fn is_resizing(&self) -> bool {
        self.is_resizing
    }

    /// What the time demands.
    pub fn at(&mut self, now: Duration) -> Option<Order> {
        let is_over = self.limit.is_some_and(|limit| now >= limit);
        if self.is_killed || !is_over || self.is_complete() {
            return None;
        }
        self.is_killed = true;
        Some(Order::Kill)
    }

    /// Whether all have ended.
    pub fn is_complete(&self) -> bool {
        !self.is_member.contains(&true)
    }

    /// Whether the ends of those that are left are a matter of moments.
    pub fn is_ending(&self) -> bool {
        self.is_killed
    }

    /// How they ended, in the order in which they did.
    pub fn ended(self) -> Vec<Ended> {
        self.ended
    }

    /// How many have ended.
    pub fn num_ended(&self) -> usize {
        self.ended.len()
    }

    fn limit_to(&mut self, moment: Duration) {
        // Workers that were asked to end save first, whatever becomes of one of them.
        let limit = match self.limit {
            Some(limit) if !self.is_asked => limit.min(moment),
            Some(limit) => limit.max(moment),
            None => moment,
        };
        self.limit = Some(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Exit = Exit::Signal(9);
    const DONE: Exit = Exit::Code(0);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_life_is_complete_when_all_have_ended_and_nobody_is_killed_for_ending_well() {
        let mut all = Membership::new(1, 3);
        for rank in [2, 0] {
            assert!(all.has_ended(seconds(1), 1, rank, DONE));
            assert_eq!(all.at(seconds(1_000)), None);
        }
        assert!(!all.is_complete());
        assert!(all.has_ended(seconds(2_000), 1, 1, DONE));
        assert!(all.is_complete());
        assert_eq!(all.ended().iter().map(|end| end.rank).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn after_a_failure_the_others_get_a_while_and_are_ended_once() {
        let mut all = Membership::new(1, 3);
        all.has_ended(seconds(10), 1, 1, Exit::Code(4));
        assert_eq!(all.at(seconds(12)), None);
        // A second failure does not prolong it.
        all.has_ended(seconds(12), 1, 0, Exit::Code(3));
        assert_eq!(all.at(seconds(13)), Some(Order::Kill));
        assert_eq!(all.at(seconds(14)), None);
        all.has_ended(seconds(14), 1, 2, LOST);
        let by_us: Vec<_> = all.ended().iter().map(|end| end.by_us).collect();
        assert_eq!(by_us, [false, false, true]);
    }

    #[test]
    fn after_a_loss_there_is_less_to_wait_for() {
        let mut all = Membership::new(1, 2);
        all.has_ended(seconds(10), 1, 1, LOST);
        assert_eq!(all.at(seconds(10) + AFTER_LOSS / 2), None);
        assert_eq!(all.at(seconds(10) + AFTER_LOSS), Some(Order::Kill));
    }

    #[test]
    fn one_that_has_a_stand_in_may_be_lost_and_the_stand_in_may_not() {
        let mut all = Membership::new(1, 4).with_stand_ins(&[vec![2, 3]]);
        all.has_ended(seconds(10), 1, 2, LOST);
        assert_eq!(all.at(seconds(100)), None, "rank 3 stands in for it");
        all.has_ended(seconds(100), 1, 3, LOST);
        assert_eq!(all.at(seconds(100) + AFTER_LOSS), Some(Order::Kill));
        let replaced: Vec<_> = all.ended().iter().map(|end| end.is_replaced).collect();
        assert_eq!(replaced, [true, false]);
        // Whoever fails for a reason of its own would fail again.
        let mut all = Membership::new(1, 4).with_stand_ins(&[vec![2, 3]]);
        all.has_ended(seconds(10), 1, 2, Exit::Code(101));
        assert_eq!(all.at(seconds(100)), Some(Order::Kill));
    }

    #[test]
    fn what_is_heard_of_an_earlier_life_changes_nothing() {
        let mut all = Membership::new(2, 2);
        assert!(!all.has_ended(seconds(1), 1, 0, LOST), "it was of life 1");
        assert!(!all.has_ended(seconds(1), 2, 7, LOST), "there is no rank 7");
        assert_eq!((all.at(seconds(100)), all.num_ended()), (None, 0));
        assert!(all.has_ended(seconds(1), 2, 0, DONE));
        assert!(!all.has_ended(seconds(1), 2, 0, LOST), "it has ended already");
        assert_eq!(all.at(seconds(100)), None);
    }

    #[test]
    fn a_request_is_passed_on_once_and_leaves_time_to_save() {
        let mut all = Membership::new(1, 2);
        assert_eq!(all.asked_to_end(seconds(5)), Some(Order::Terminate));
        assert_eq!(all.asked_to_end(seconds(6)), None);
        // One that ends at once takes no time from the other.
        all.has_ended(seconds(6), 1, 0, Exit::Code(143));
        assert_eq!(all.at(seconds(29)), None);
        assert_eq!(all.at(seconds(30)), Some(Order::Kill));
    }

    #[test]
    fn a_life_makes_room_for_a_larger_one_once_and_only_while_all_is_well() {
        let mut all = Membership::new(1, 2);
        assert_eq!(all.can_grow(seconds(5)), Some(Order::Terminate));
        assert_eq!(all.can_grow(seconds(6)), None);
        assert!(all.is_resizing());
        assert_eq!(all.at(seconds(29)), None);
        assert_eq!(all.at(seconds(30)), Some(Order::Kill));
        for exit in [LOST, DONE] {
            let mut all = Membership::new(1, 2);
            all.has_ended(seconds(4), 1, 0, exit);
            assert_eq!(all.can_grow(seconds(5)), None, "it is ending");
            assert!(!all.is_resizing());
        }
        let mut all = Membership::new(1, 2);
        all.asked_to_end(seconds(1));
        assert_eq!(all.can_grow(seconds(5)), None, "the whole run is to end");
        assert!(!all.is_resizing());
    }

    #[test]
    fn every_order_of_ends_completes_and_kills_only_after_a_failure() {
        for code in 0..2_u32.pow(4) {
            let exit = |rank: usize| if code >> rank & 1 == 1 { LOST } else { DONE };
            let mut all = Membership::new(1, 4);
            let mut failed = false;
            for rank in [3, 1, 0, 2] {
                let order = all.at(seconds(100));
                assert_eq!(order.is_some(), failed, "{code:04b}");
                if order.is_some() {
                    break;
                }
                all.has_ended(seconds(1), 1, rank, exit(rank));
                failed |= exit(rank) == LOST;
            }
            assert!(all.is_complete() || all.is_ending());
        }
    }
}
