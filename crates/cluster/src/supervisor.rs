//! Whether a run that failed begins again, and when.
//!
//! The policy is a match on who is to blame. A worker that was lost is replaced: all workers start
//! again as a new life of the run and go on from the newest checkpoint. A disk may come back. A
//! mistake of the person, numbers that left the finite ones and a bug would only happen again.
//! Between two lives there is a pause that doubles, so that whatever kills a run at once is not
//! helped to do so a hundred times a second; a life that lasted starts the count anew.

use lockstep_config::Blame;
use std::time::Duration;

/// The first pause.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A life that lasted so long did not fail at once.
const LASTING: Duration = Duration::from_mins(5);

/// Counts the lives of a run.
#[derive(Clone, Debug)]
pub struct Supervisor {
    restarts_left: u64,
    restarts: u64,
    pause: Duration,
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
    /// The run may begin again so often.
    pub fn new(restarts: u64) -> Self {
        Self { restarts_left: restarts, restarts: 0, pause: PAUSE }
    }

    /// How often the run has begun again.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Decides about a life that lasted so long and ended with this exit code.
    pub fn after(&mut self, exit_code: u8, lasted: Duration) -> Next {
        if !is_worth_another_life(exit_code) || self.restarts_left == 0 {
            return Next::GiveUp;
        }
        if lasted >= LASTING {
            self.pause = PAUSE;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        self.restarts_left -= 1;
        self.restarts += 1;
        Next::Restart { pause }
    }
}

fn is_worth_another_life(exit_code: u8) -> bool {
    [Blame::Peer(0), Blame::Storage].iter().any(|blame| blame.exit_code() == exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_may_go_away_by_itself_is_tried_again() {
        for (blame, again) in [
            (Blame::Peer(3), true),
            (Blame::Storage, true),
            (Blame::User, false),
            (Blame::Diverged, false),
        ] {
            let next = Supervisor::new(5).after(blame.exit_code(), SHORT);
            assert_eq!(next != Next::GiveUp, again, "{blame}");
        }
        // A bug, and a run that was asked to end.
        for code in [101, 143] {
            assert_eq!(Supervisor::new(5).after(code, SHORT), Next::GiveUp, "{code}");
        }
    }

    #[test]
    fn a_run_begins_again_as_often_as_it_may() {
        let mut supervisor = Supervisor::new(2);
        assert!(matches!(supervisor.after(3, SHORT), Next::Restart { .. }));
        assert!(matches!(supervisor.after(3, SHORT), Next::Restart { .. }));
        assert_eq!(supervisor.after(3, SHORT), Next::GiveUp);
        assert_eq!(supervisor.restarts(), 2);
        assert_eq!(Supervisor::new(0).after(3, SHORT), Next::GiveUp);
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_life_that_lasted() {
        let mut supervisor = Supervisor::new(100);
        let mut pause = |lasted| match supervisor.after(3, lasted) {
            Next::Restart { pause } => pause,
            Next::GiveUp => panic!("it may begin again"),
        };
        assert_eq!([pause(SHORT), pause(SHORT), pause(SHORT)], [PAUSE, 2 * PAUSE, 4 * PAUSE]);
        for _ in 0..20 {
            assert!(pause(SHORT) <= LONGEST_PAUSE);
        }
        assert_eq!(pause(SHORT), LONGEST_PAUSE);
        assert_eq!(pause(LASTING), PAUSE);
    }
}
