//! Slots of a run and their assignment to ranks, as a state machine without clock or processes.
//!
//! A slot can run one worker. A run of fixed size uses all its slots in every attempt. An elastic
//! run has between its smallest and its largest number of workers: a slot whose worker was lost too
//! often, or twice soon after the start, becomes unavailable, and the run continues without it. It
//! is retried after a delay, which doubles with every quick loss. Each attempt assigns the ranks
//! anew to the available slots, in ascending order.
//!
//! A *vacant* slot waits for a remote worker and is not retried before one joins.

use std::time::Duration;

/// A loss within this time of the start of an attempt is a quick loss.
pub const QUICK_LOSS: Duration = Duration::from_secs(10);

/// An attempt that lasted this long clears the losses of its slots.
pub const STABLE: Duration = Duration::from_mins(5);

/// Largest number of doublings of the delay.
const MAX_DOUBLINGS: u32 = 6;

/// Numbers of workers of a run, and its policy for lost ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Allowed numbers of workers, ascending; at least one.
    pub sizes: Vec<usize>,
    /// Number of restarts of the run, or of each slot of an elastic run.
    pub restarts: u64,
    /// Delay before an unavailable slot is retried.
    pub rejoin: Duration,
}

impl RestartPolicy {
    /// Policy of a run of fixed size.
    pub fn fixed(num_workers: usize, restarts: u64) -> Self {
        Self { sizes: vec![num_workers], restarts, rejoin: Duration::MAX }
    }

    /// Largest number of workers.
    pub fn max_workers(&self) -> usize {
        self.sizes.last().copied().expect("a run has workers")
    }
}

/// Slots of a run.
#[derive(Clone, Debug)]
pub struct SlotTable {
    policy: RestartPolicy,
    slots: Vec<Slot>,
    /// Slots of the current attempt, indexed by rank.
    assigned: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Losses since the last stable attempt.
    losses: u64,
    /// Number of times it became unavailable since then.
    times_unavailable: u32,
    /// Time of the next retry; `None` if the slot is available.
    retry_at: Option<Duration>,
    /// Whether it waits for a remote worker.
    is_vacant: bool,
}

impl SlotTable {
    /// Slots of a run, all assigned.
    pub fn new(policy: RestartPolicy) -> Self {
        let all = policy.max_workers();
        Self { policy, slots: vec![Slot::default(); all], assigned: (0..all).collect() }
    }

    /// Slots of a run that starts with the first `num_local`; the others wait for remote workers.
    ///
    /// # Panics
    /// If `num_local` is below the smallest number of workers.
    pub fn with_remote_workers(policy: RestartPolicy, num_local: usize) -> Self {
        let mut table = Self::new(policy);
        table.slots[num_local..].iter_mut().for_each(|slot| slot.is_vacant = true);
        assert!(table.assign(Duration::ZERO), "local workers suffice for an attempt");
        table
    }

    /// A remote worker joined for a slot.
    pub fn occupy(&mut self, slot: usize) {
        self.slots[slot] = Slot::default();
    }

    /// The remote worker of a slot left.
    pub fn vacate(&mut self, slot: usize) {
        self.slots[slot].is_vacant = true;
    }

    /// Slots of the current attempt, indexed by rank.
    pub fn assigned(&self) -> &[usize] {
        &self.assigned
    }

    /// Whether the number of workers may change.
    pub fn is_elastic(&self) -> bool {
        self.policy.sizes.len() > 1
    }

    /// Records the loss of ranks in an attempt that lasted `lasted`. Returns the number of slots
    /// that became unavailable.
    pub fn record_losses(&mut self, now: Duration, ranks: &[usize], lasted: Duration) -> usize {
        if lasted >= STABLE {
            for slot in &self.assigned {
                let is_vacant = self.slots[*slot].is_vacant;
                self.slots[*slot] = Slot { is_vacant, ..Slot::default() };
            }
        }
        let (is_elastic, policy) = (self.is_elastic(), &self.policy);
        let mut num_unavailable = 0;
        for rank in ranks {
            let slot = &mut self.slots[self.assigned[*rank]];
            slot.losses += 1;
            let is_repeated = slot.losses > 1 && lasted < QUICK_LOSS;
            if is_elastic && (slot.losses > policy.restarts || is_repeated) {
                let delay =
                    policy.rejoin.saturating_mul(1 << slot.times_unavailable.min(MAX_DOUBLINGS));
                slot.retry_at = Some(now.saturating_add(delay));
                slot.times_unavailable += 1;
                num_unavailable += 1;
            }
        }
        num_unavailable
    }

    /// Makes all lost slots available at once, on request of the user.
    pub fn retry_lost_slots(&mut self) {
        for slot in &mut self.slots {
            slot.retry_at = slot.retry_at.map(|_| Duration::ZERO);
        }
    }

    /// Assigns slots to the next attempt. False, without assignment, if too few are available.
    pub fn assign(&mut self, now: Duration) -> bool {
        let available = self.available(now);
        let Some(size) = self.largest_size(available.len()) else {
            self.assigned.clear();
            return false;
        };
        for slot in &available {
            self.slots[*slot].retry_at = None;
        }
        self.assigned = available;
        self.assigned.truncate(size);
        true
    }

    /// Whether an attempt that starts now would have more workers than the current one.
    pub fn can_grow(&self, now: Duration) -> bool {
        let size = self.largest_size(self.available(now).len());
        size.is_some_and(|size| size > self.assigned.len())
    }

    /// Slots that are available or due for a retry.
    fn available(&self, now: Duration) -> Vec<usize> {
        let is_due = |slot: &Slot| slot.retry_at.is_none_or(|moment| moment <= now);
        let is_available = |slot: &Slot| !slot.is_vacant && is_due(slot);
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| is_available(slot)).map(|(number, _)| number).collect()
    }

    fn largest_size(&self, num_available: usize) -> Option<usize> {
        self.policy.sizes.iter().copied().rfind(|size| *size <= num_available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn table(sizes: &[usize], restarts: u64) -> SlotTable {
        SlotTable::new(RestartPolicy { sizes: sizes.to_vec(), restarts, rejoin: seconds(60) })
    }

    #[test]
    fn a_run_of_fixed_size_keeps_all_its_slots() {
        let mut all = SlotTable::new(RestartPolicy::fixed(3, 5));
        for rank in [0, 1, 2, 2, 2] {
            assert_eq!(all.record_losses(seconds(1), &[rank], seconds(0)), 0);
            assert!(all.assign(seconds(1)) && !all.can_grow(seconds(1_000_000)));
            assert_eq!(all.assigned(), [0, 1, 2]);
        }
    }

    #[test]
    fn an_unavailable_slot_is_left_out_and_retried_after_a_delay() {
        let mut all = table(&[2, 3, 4], 0);
        assert_eq!(all.record_losses(seconds(100), &[1], seconds(100)), 1, "no restart is allowed");
        assert!(all.assign(seconds(100)));
        assert_eq!(all.assigned(), [0, 2, 3]);
        // Rank 1 is slot 2 now.
        assert_eq!(all.record_losses(seconds(120), &[1], seconds(20)), 1);
        assert!(all.assign(seconds(120)));
        assert_eq!(all.assigned(), [0, 3]);
        assert!(!all.can_grow(seconds(159)));
        assert!(all.can_grow(seconds(160)) && all.assign(seconds(160)));
        assert_eq!(all.assigned(), [0, 1, 3]);
        assert!(all.can_grow(seconds(180)) && all.assign(seconds(180)));
        assert_eq!(all.assigned(), [0, 1, 2, 3]);
        assert!(!all.can_grow(seconds(9_999)));
    }

    #[test]
    fn lost_slots_are_retried_on_request() {
        let mut all = table(&[2, 3, 4], 0);
        assert!(
            all.record_losses(seconds(100), &[1, 3], seconds(100)) == 2 && all.assign(seconds(100))
        );
        assert!(!all.can_grow(seconds(101)));
        all.retry_lost_slots();
        assert!(all.can_grow(seconds(101)) && all.assign(seconds(101)));
        assert_eq!(all.assigned(), [0, 1, 2, 3]);
    }

    #[test]
    fn remote_slots_are_available_while_their_worker_is_connected() {
        let policy = RestartPolicy { sizes: vec![2, 3, 4], restarts: 5, rejoin: seconds(60) };
        let mut all = SlotTable::with_remote_workers(policy, 2);
        assert_eq!(all.assigned(), [0, 1]);
        all.retry_lost_slots();
        assert!(!all.can_grow(seconds(1_000)), "vacant slots cannot be retried");
        all.occupy(3);
        assert!(all.can_grow(seconds(1)) && all.assign(seconds(1)));
        assert_eq!(all.assigned(), [0, 1, 3]);
        all.vacate(3);
        // The worker is reported as lost as well; a stable attempt does not restore a vacant slot.
        assert_eq!(all.record_losses(seconds(900), &[2], STABLE), 0);
        assert!(all.assign(seconds(900)) && !all.can_grow(seconds(900)));
        assert_eq!(all.assigned(), [0, 1]);
        all.occupy(2);
        all.occupy(3);
        assert!(all.can_grow(seconds(901)) && all.assign(seconds(901)));
        assert_eq!(all.assigned(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_slot_may_be_lost_within_its_budget_but_not_quickly_twice() {
        let mut all = table(&[1, 2], 3);
        for _ in 0..3 {
            assert_eq!(all.record_losses(seconds(50), &[1], seconds(50)), 0, "a budget of three");
        }
        assert_eq!(all.record_losses(seconds(50), &[1], seconds(50)), 1, "the budget is spent");
        let mut all = table(&[1, 2], 3);
        assert_eq!(all.record_losses(seconds(1), &[1], seconds(1)), 0, "the first quick loss");
        assert_eq!(all.record_losses(seconds(2), &[1], seconds(1)), 1, "a second quick loss");
        let mut all = table(&[1, 2], 0);
        assert_eq!(
            all.record_losses(seconds(2), &[1], STABLE),
            1,
            "a stable attempt does not change the policy"
        );
    }

    #[test]
    fn the_delay_of_an_unstable_slot_doubles() {
        let mut all = table(&[1, 2], 0);
        let mut now = seconds(0);
        for expected in [60, 120, 240] {
            assert!(all.record_losses(now, &[1], seconds(1)) == 1 && all.assign(now));
            assert_eq!(all.assigned(), [0]);
            assert!(!all.can_grow(now + seconds(expected - 1)));
            now += seconds(expected);
            assert!(all.can_grow(now) && all.assign(now));
        }
        // A stable attempt resets the delay.
        assert!(all.record_losses(now, &[1], STABLE) == 1 && all.assign(now));
        assert!(all.can_grow(now + seconds(60)));
    }

    #[test]
    fn several_slots_may_be_lost_together() {
        let mut all = table(&[2, 3, 4], 0);
        assert_eq!(all.record_losses(seconds(1), &[3, 0], STABLE), 2);
        assert!(all.assign(seconds(1)));
        assert_eq!(all.assigned(), [1, 2]);
        assert!(all.can_grow(seconds(61)) && all.assign(seconds(61)));
        assert_eq!(all.assigned(), [0, 1, 2, 3]);
    }

    #[test]
    fn fewer_than_the_smallest_size_are_not_assigned() {
        let mut all = table(&[2, 4], 0);
        assert!(all.record_losses(seconds(1), &[3], seconds(1)) == 1 && all.assign(seconds(1)));
        assert_eq!(all.assigned(), [0, 1], "replicas of two workers each");
        assert!(all.record_losses(seconds(2), &[0], seconds(1)) == 1 && all.assign(seconds(2)));
        assert_eq!(all.assigned(), [1, 2]);
        assert_eq!(all.record_losses(seconds(3), &[0], seconds(1)), 1);
        assert!(!all.assign(seconds(3)), "one is left");
        assert!(all.assigned().is_empty());
    }

    /// For random losses and times, assigned slots are available, unique and an allowed number.
    #[test]
    fn only_available_slots_are_assigned_each_once() {
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for case in 0..2_000 {
            let sizes = [&[2, 3, 4][..], &[2, 4], &[1, 2, 3, 4, 5], &[4]][below(4) as usize];
            let mut all = table(sizes, below(3));
            let mut now = seconds(0);
            for _ in 0..30 {
                let lasted = seconds(below(400));
                now += lasted;
                let before = all.assigned().to_vec();
                if below(3) > 0 {
                    let rank = below(before.len() as u64) as usize;
                    let is_unavailable = all.record_losses(now, &[rank], lasted) == 1;
                    if !all.assign(now) {
                        assert!(is_unavailable, "case {case}: no slot is missing");
                        break;
                    }
                    assert!(
                        !is_unavailable || !all.assigned().contains(&before[rank]),
                        "case {case}"
                    );
                } else if all.can_grow(now) {
                    assert!(all.assign(now));
                    assert!(all.assigned().len() > before.len(), "case {case}");
                }
                assert!(sizes.contains(&all.assigned().len()), "case {case}");
                assert!(all.assigned().is_sorted_by(|a, b| a < b), "case {case}");
                assert!(all.assigned().iter().all(|slot| all.slots[*slot].retry_at.is_none()));
            }
        }
    }
}
