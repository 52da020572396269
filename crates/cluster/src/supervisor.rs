//! Whether a run that failed begins again, and when.
//!
//! The policy is a match on who is to blame. A worker that was lost is replaced: all workers start
//! again as a new life of the run and go on from the newest checkpoint. A disk may come back. A
//! mistake of the person, numbers that left the finite ones and a bug would only happen again.
//! Between two lives there is a pause that doubles, so that whatever kills a run at once is not
//! helped to do so a hundred times a second; a life that lasted ten times as long as the pause
//! starts the count anew, so that no more than a tenth of the time goes by in pauses. Who is part
//! of the next life the [roster](crate::roster) decides: of an elastic run a worker that is gone is
//! not.

use crate::RunFailure;
use crate::roster::{Roster, Terms};
use lockstep_config::Blame;
use std::time::Duration;

/// The first pause.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A life that lasted so many times the next pause did not fail at once.
const LASTING_PAUSES: u32 = 10;

/// The exit code of a worker that has saved and ended because it was asked to.
const ASKED_TO_END: i32 = 143;

/// Counts the lives of a run.
#[derive(Clone, Debug)]
pub struct Supervisor {
    restarts_left: u64,
    lives_before: u64,
    pause: Duration,
    roster: Roster,
}

/// What becomes of a run that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It begins again after a pause.
    Restart {
        /// How long.
        pause: Duration,
    },
    /// It has failed.
    GiveUp,
}

impl Supervisor {
    /// The run may do so much about its workers.
    pub fn new(terms: Terms) -> Self {
        let restarts_left = terms.restarts;
        Self { restarts_left, lives_before: 0, pause: PAUSE, roster: Roster::new(terms) }
    }

    /// The same for a run that begins with its first `num_local` slots and waits for guests.
    pub fn with_guests(terms: Terms, num_local: usize) -> Self {
        let roster = Roster::with_guests(terms.clone(), num_local);
        Self { roster, ..Self::new(terms) }
    }

    /// How often the run has begun again.
    pub fn lives_before(&self) -> u64 {
        self.lives_before
    }

    /// The slots of the present life, by rank.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// See [`Roster::recall`].
    pub fn recall(&mut self) {
        self.roster.recall();
    }

    /// The same, for whoever hears of guests.
    pub(crate) fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    /// Decides about a life that lasted so long and failed.
    pub fn after(&mut self, now: Duration, failure: &RunFailure, lasted: Duration) -> Next {
        if !is_worth_another_life(failure.exit_code) {
            return Next::GiveUp;
        }
        if self.roster.is_elastic() && !failure.lost.is_empty() {
            self.roster.lost(now, &failure.lost, lasted);
        } else if self.restarts_left == 0 {
            return Next::GiveUp;
        } else {
            self.restarts_left -= 1;
        }
        if !self.roster.seat(now) {
            return Next::GiveUp;
        }
        if lasted >= LASTING_PAUSES * self.pause {
            self.pause = PAUSE;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        self.lives_before += 1;
        Next::Restart { pause }
    }

    /// A life was ended so that one with more workers can begin, if its end was nothing worse.
    pub fn resized(&mut self, now: Duration, failure: &RunFailure) -> bool {
        let was_asked = i32::from(failure.exit_code) == ASKED_TO_END;
        let was_lost = failure.exit_code == Blame::Peer(0).exit_code();
        let goes_on = (was_asked || was_lost) && self.roster.seat(now);
        self.lives_before += u64::from(goes_on);
        goes_on
    }
}

fn is_worth_another_life(exit_code: u8) -> bool {
    [Blame::Peer(0), Blame::Storage].iter().any(|blame| blame.exit_code() == exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_000);

    /// A run that failed with this code, for whatever reason but a worker that was lost.
    fn failure(exit_code: u8) -> RunFailure {
        let (lost, text, others) = (Vec::new(), String::new(), Vec::new());
        RunFailure { rank: 0, exit_code, lost, text, others }
    }

    fn lost(rank: usize) -> RunFailure {
        RunFailure { rank, lost: vec![rank], ..failure(3) }
    }

    fn fixed(restarts: u64) -> Supervisor {
        Supervisor::new(Terms::fixed(2, restarts))
    }

    #[test]
    fn only_what_may_go_away_by_itself_is_tried_again() {
        for (blame, again) in [
            (Blame::Peer(3), true),
            (Blame::Storage, true),
            (Blame::User, false),
            (Blame::Diverged, false),
        ] {
            let next = fixed(5).after(NOW, &failure(blame.exit_code()), SHORT);
            assert_eq!(next != Next::GiveUp, again, "{blame}");
        }
        // A bug, and a run that was asked to end.
        for code in [101, 143] {
            assert_eq!(fixed(5).after(NOW, &failure(code), SHORT), Next::GiveUp, "{code}");
        }
    }

    #[test]
    fn a_run_begins_again_as_often_as_it_may() {
        let mut supervisor = fixed(2);
        assert!(matches!(supervisor.after(NOW, &lost(1), SHORT), Next::Restart { .. }));
        assert!(matches!(supervisor.after(NOW, &failure(4), SHORT), Next::Restart { .. }));
        assert_eq!(supervisor.after(NOW, &lost(1), SHORT), Next::GiveUp);
        assert_eq!(supervisor.lives_before(), 2);
        assert_eq!(fixed(0).after(NOW, &lost(0), SHORT), Next::GiveUp);
    }

    #[test]
    fn an_elastic_run_goes_on_without_workers_that_are_gone_down_to_its_fewest() {
        let terms = Terms { sizes: vec![2, 3, 4], restarts: 0, rejoin: Duration::from_secs(9) };
        let mut supervisor = Supervisor::new(terms);
        for num_left in [3, 2] {
            let next = supervisor.after(NOW, &lost(1), SHORT);
            assert!(matches!(next, Next::Restart { .. }), "{num_left}");
            assert_eq!(supervisor.roster().seated().len(), num_left);
        }
        let mut grown = supervisor.clone();
        assert_eq!(supervisor.after(NOW, &lost(1), SHORT), Next::GiveUp);
        // What is nobody's slot, a disk, has the budget of the run.
        assert_eq!(supervisor.after(NOW, &failure(4), SHORT), Next::GiveUp);

        let later = NOW + Duration::from_secs(9);
        assert!(grown.roster().can_grow(later));
        assert!(!grown.resized(later, &failure(5)), "it diverged meanwhile");
        assert!(grown.resized(later, &failure(143)));
        assert_eq!((grown.roster().seated().len(), grown.lives_before()), (4, 3));
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_life_that_lasted() {
        let mut supervisor = fixed(100);
        let mut pause = |lasted| match supervisor.after(NOW, &lost(0), lasted) {
            Next::Restart { pause } => pause,
            Next::GiveUp => panic!("it may begin again"),
        };
        let at_once = PAUSE / 2;
        assert_eq!([(); 3].map(|()| pause(at_once)), [PAUSE, 2 * PAUSE, 4 * PAUSE]);
        for _ in 0..20 {
            assert!(pause(at_once) <= LONGEST_PAUSE);
        }
        assert_eq!(pause(SHORT), LONGEST_PAUSE, "a tenth of the time is for pauses");
        assert_eq!(pause(10 * LONGEST_PAUSE), PAUSE);
        assert_eq!(pause(SHORT), 2 * PAUSE);
        assert_eq!(pause(20 * PAUSE), 4 * PAUSE, "a sixth would be");
        assert_eq!([(); 3].map(|()| pause(80 * PAUSE)), [PAUSE; 3]);
    }
}
