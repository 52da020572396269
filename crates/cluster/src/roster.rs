//! Who sits where in the next life of a run: a state machine over *slots*, without a clock or a
//! process of its own.
//!
//! A slot is a place where a worker can be started. A run of a fixed size fills all of its slots in
//! every life. An elastic one has between its fewest and its most workers: a slot whose worker was
//! lost too often, or at once again, is *gone*, and the run goes on without it. After a while it is
//! tried again; a slot that is lost at once once more stays away twice as long. Ranks are dealt out
//! anew to the slots that are there, ascending, so a life never knows who was missing before.
//!
//! A slot may also be *vacant*: it waits for a guest from another host, and is not tried before.

use std::time::Duration;

/// A worker that was lost so soon after its life began was lost at once.
pub const AT_ONCE: Duration = Duration::from_secs(10);

/// A life that lasted so long proves that its slots are well.
pub const LASTING: Duration = Duration::from_mins(5);

/// How often the time away doubles.
const MAX_DOUBLINGS: u32 = 6;

/// What a run may do about its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many workers a life may have, ascending; at least one number.
    pub sizes: Vec<usize>,
    /// How often the run, or each slot of an elastic one, may be started again.
    pub restarts: u64,
    /// How long a slot that is gone stays away.
    pub rejoin: Duration,
}

impl Terms {
    /// A run of a fixed size.
    pub fn fixed(num_workers: usize, restarts: u64) -> Self {
        Self { sizes: vec![num_workers], restarts, rejoin: Duration::MAX }
    }

    /// The most workers.
    pub fn max_workers(&self) -> usize {
        self.sizes.last().copied().expect("a life has workers")
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Roster {
    terms: Terms,
    slots: Vec<Slot>,
    /// The slots of the present life, by rank.
    seated: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Losses since it was last known to be well.
    losses: u64,
    /// How often it was gone since then.
    times_gone: u32,
    /// When it is tried again; nothing where it is not gone.
    back_at: Option<Duration>,
    /// Whether it waits for a guest.
    is_vacant: bool,
}

impl Roster {
    /// All slots of a run, all of them seated.
    pub fn new(terms: Terms) -> Self {
        let all = terms.max_workers();
        Self { terms, slots: vec![Slot::default(); all], seated: (0..all).collect() }
    }

    /// A run that begins with its first `num_local` slots; the others wait for guests.
    ///
    /// # Panics
    /// Where those are too few for a life.
    pub fn with_guests(terms: Terms, num_local: usize) -> Self {
        let mut roster = Self::new(terms);
        roster.slots[num_local..].iter_mut().for_each(|slot| slot.is_vacant = true);
        assert!(roster.seat(Duration::ZERO), "a run begins with workers of its own");
        roster
    }

    /// A guest has come to fill a slot.
    pub fn occupy(&mut self, slot: usize) {
        self.slots[slot] = Slot::default();
    }

    /// The guest of a slot is gone.
    pub fn vacate(&mut self, slot: usize) {
        self.slots[slot].is_vacant = true;
    }

    /// The slots of the present life, by rank.
    pub fn seated(&self) -> &[usize] {
        &self.seated
    }

    /// Whether workers may come and go.
    pub fn is_elastic(&self) -> bool {
        self.terms.sizes.len() > 1
    }

    /// The workers of these ranks were lost, in a life that had lasted so long. Tells how many of
    /// their slots are gone.
    pub fn lost(&mut self, now: Duration, ranks: &[usize], lasted: Duration) -> usize {
        if lasted >= LASTING {
            for slot in &self.seated {
                let is_vacant = self.slots[*slot].is_vacant;
                self.slots[*slot] = Slot { is_vacant, ..Slot::default() };
            }
        }
        let (is_elastic, terms) = (self.is_elastic(), &self.terms);
        let mut num_gone = 0;
        for rank in ranks {
            let slot = &mut self.slots[self.seated[*rank]];
            slot.losses += 1;
            let is_again = slot.losses > 1 && lasted < AT_ONCE;
            if is_elastic && (slot.losses > terms.restarts || is_again) {
                let away = terms.rejoin.saturating_mul(1 << slot.times_gone.min(MAX_DOUBLINGS));
                slot.back_at = Some(now.saturating_add(away));
                slot.times_gone += 1;
                num_gone += 1;
            }
        }
        num_gone
    }

    /// All slots that are gone may be tried again at once: somebody knows that they are well.
    pub fn recall(&mut self) {
        for slot in &mut self.slots {
            slot.back_at = slot.back_at.map(|_| Duration::ZERO);
        }
    }

    /// Seats the next life. False, and nobody is, where too few slots are there.
    pub fn seat(&mut self, now: Duration) -> bool {
        let there = self.there(now);
        let Some(size) = self.nearest_size(there.len()) else {
            self.seated.clear();
            return false;
        };
        for slot in &there {
            self.slots[*slot].back_at = None;
        }
        self.seated = there;
        self.seated.truncate(size);
        true
    }

    /// Whether a life that began now would have more workers than the present one has.
    pub fn can_grow(&self, now: Duration) -> bool {
        let size = self.nearest_size(self.there(now).len());
        size.is_some_and(|size| size > self.seated.len())
    }

    /// The slots that are not gone, or are to be tried again.
    fn there(&self, now: Duration) -> Vec<usize> {
        let is_back = |slot: &Slot| slot.back_at.is_none_or(|moment| moment <= now);
        let is_there = |slot: &Slot| !slot.is_vacant && is_back(slot);
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| is_there(slot)).map(|(number, _)| number).collect()
    }

    fn nearest_size(&self, num_there: usize) -> Option<usize> {
        self.terms.sizes.iter().copied().rfind(|size| *size <= num_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn roster(sizes: &[usize], restarts: u64) -> Roster {
        Roster::new(Terms { sizes: sizes.to_vec(), restarts, rejoin: seconds(60) })
    }

    #[test]
    fn a_run_of_a_fixed_size_keeps_all_its_slots() {
        let mut all = Roster::new(Terms::fixed(3, 5));
        for rank in [0, 1, 2, 2, 2] {
            assert_eq!(all.lost(seconds(1), &[rank], seconds(0)), 0);
            assert!(all.seat(seconds(1)) && !all.can_grow(seconds(1_000_000)));
            assert_eq!(all.seated(), [0, 1, 2]);
        }
    }

    #[test]
    fn a_slot_that_is_gone_is_left_out_and_taken_back_after_a_while() {
        let mut all = roster(&[2, 3, 4], 0);
        assert_eq!(all.lost(seconds(100), &[1], seconds(100)), 1, "it may never be lost");
        assert!(all.seat(seconds(100)));
        assert_eq!(all.seated(), [0, 2, 3]);
        // Rank 1 is slot 2 now.
        assert_eq!(all.lost(seconds(120), &[1], seconds(20)), 1);
        assert!(all.seat(seconds(120)));
        assert_eq!(all.seated(), [0, 3]);
        assert!(!all.can_grow(seconds(159)));
        assert!(all.can_grow(seconds(160)) && all.seat(seconds(160)));
        assert_eq!(all.seated(), [0, 1, 3]);
        assert!(all.can_grow(seconds(180)) && all.seat(seconds(180)));
        assert_eq!(all.seated(), [0, 1, 2, 3]);
        assert!(!all.can_grow(seconds(9_999)));
    }

    #[test]
    fn slots_that_are_gone_are_taken_back_when_somebody_says_so() {
        let mut all = roster(&[2, 3, 4], 0);
        assert!(all.lost(seconds(100), &[1, 3], seconds(100)) == 2 && all.seat(seconds(100)));
        assert!(!all.can_grow(seconds(101)));
        all.recall();
        assert!(all.can_grow(seconds(101)) && all.seat(seconds(101)));
        assert_eq!(all.seated(), [0, 1, 2, 3]);
    }

    #[test]
    fn slots_of_guests_are_there_from_when_they_come_until_they_go() {
        let terms = Terms { sizes: vec![2, 3, 4], restarts: 5, rejoin: seconds(60) };
        let mut all = Roster::with_guests(terms, 2);
        assert_eq!(all.seated(), [0, 1]);
        all.recall();
        assert!(!all.can_grow(seconds(1_000)), "nobody can say that they are well");
        all.occupy(3);
        assert!(all.can_grow(seconds(1)) && all.seat(seconds(1)));
        assert_eq!(all.seated(), [0, 1, 3]);
        all.vacate(3);
        // It is told as lost too; a life that lasted does not bring it back.
        assert_eq!(all.lost(seconds(900), &[2], LASTING), 0);
        assert!(all.seat(seconds(900)) && !all.can_grow(seconds(900)));
        assert_eq!(all.seated(), [0, 1]);
        all.occupy(2);
        all.occupy(3);
        assert!(all.can_grow(seconds(901)) && all.seat(seconds(901)));
        assert_eq!(all.seated(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_slot_may_be_lost_now_and_then_but_not_at_once_again() {
        let mut all = roster(&[1, 2], 3);
        for _ in 0..3 {
            assert_eq!(all.lost(seconds(50), &[1], seconds(50)), 0, "a budget of three");
        }
        assert_eq!(all.lost(seconds(50), &[1], seconds(50)), 1, "and no more");
        let mut all = roster(&[1, 2], 3);
        assert_eq!(all.lost(seconds(1), &[1], seconds(1)), 0, "for the first time");
        assert_eq!(all.lost(seconds(2), &[1], seconds(1)), 1, "at once again");
        let mut all = roster(&[1, 2], 0);
        assert_eq!(
            all.lost(seconds(2), &[1], LASTING),
            1,
            "and a life that lasted changes no terms"
        );
    }

    #[test]
    fn a_slot_that_does_not_stay_is_tried_less_and_less_often() {
        let mut all = roster(&[1, 2], 0);
        let mut now = seconds(0);
        for expected in [60, 120, 240] {
            assert!(all.lost(now, &[1], seconds(1)) == 1 && all.seat(now));
            assert_eq!(all.seated(), [0]);
            assert!(!all.can_grow(now + seconds(expected - 1)));
            now += seconds(expected);
            assert!(all.can_grow(now) && all.seat(now));
        }
        // Once it was well for long, it is like any other.
        assert!(all.lost(now, &[1], LASTING) == 1 && all.seat(now));
        assert!(all.can_grow(now + seconds(60)));
    }

    #[test]
    fn several_may_go_at_once() {
        let mut all = roster(&[2, 3, 4], 0);
        assert_eq!(all.lost(seconds(1), &[3, 0], LASTING), 2);
        assert!(all.seat(seconds(1)));
        assert_eq!(all.seated(), [1, 2]);
        assert!(all.can_grow(seconds(61)) && all.seat(seconds(61)));
        assert_eq!(all.seated(), [0, 1, 2, 3]);
    }

    #[test]
    fn fewer_than_the_fewest_are_none() {
        let mut all = roster(&[2, 4], 0);
        assert!(all.lost(seconds(1), &[3], seconds(1)) == 1 && all.seat(seconds(1)));
        assert_eq!(all.seated(), [0, 1], "copies of two workers each");
        assert!(all.lost(seconds(2), &[0], seconds(1)) == 1 && all.seat(seconds(2)));
        assert_eq!(all.seated(), [1, 2]);
        assert_eq!(all.lost(seconds(3), &[0], seconds(1)), 1);
        assert!(!all.seat(seconds(3)), "one is left");
        assert!(all.seated().is_empty());
    }

    /// Every sequence of losses and of time: what is seated is a size that may be, of slots that
    /// are not gone, and nothing that was seated is seated twice.
    #[test]
    fn whatever_happens_only_slots_that_are_there_are_seated_each_once() {
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for case in 0..2_000 {
            let sizes = [&[2, 3, 4][..], &[2, 4], &[1, 2, 3, 4, 5], &[4]][below(4) as usize];
            let mut all = roster(sizes, below(3));
            let mut now = seconds(0);
            for _ in 0..30 {
                let lasted = seconds(below(400));
                now += lasted;
                let before = all.seated().to_vec();
                if below(3) > 0 {
                    let rank = below(before.len() as u64) as usize;
                    let is_gone = all.lost(now, &[rank], lasted) == 1;
                    if !all.seat(now) {
                        assert!(is_gone, "case {case}: nobody is missing");
                        break;
                    }
                    assert!(!is_gone || !all.seated().contains(&before[rank]), "case {case}");
                } else if all.can_grow(now) {
                    assert!(all.seat(now));
                    assert!(all.seated().len() > before.len(), "case {case}");
                }
                assert!(sizes.contains(&all.seated().len()), "case {case}");
                assert!(all.seated().is_sorted_by(|a, b| a < b), "case {case}");
                assert!(all.seated().iter().all(|slot| all.slots[*slot].back_at.is_none()));
            }
        }
    }
}
