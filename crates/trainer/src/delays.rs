//! What staleness that is measured says about a run: whose gradients are much older than all
//! workers at the same pace would make them.

use std::collections::BTreeMap;

/// How many times as old as at an even pace the oldest gradients but one in a hundred may be.
const MAX_TIMES: u64 = 4;

/// The staleness that 99 of 100 gradients do not exceed.
pub(crate) fn p99(counts: &BTreeMap<u64, u64>) -> u64 {
    let all: u64 = counts.values().sum();
    let mut seen = 0;
    let is_reached = |(_, count): &(&u64, &u64)| {
        seen += **count;
        100 * seen >= 99 * all
    };
    counts.iter().find(is_reached).map_or(0, |(staleness, _)| *staleness)
}

/// A warning about the worker whose gradients are the oldest, where they are much older than they
/// need be: at an even pace a gradient misses one update of every other worker.
pub(crate) fn warning(by_worker: &[BTreeMap<u64, u64>]) -> Option<String> {
    let others = by_worker.len().checked_sub(1).filter(|others| *others > 0)? as u64;
    let (worker, oldest) =
        by_worker.iter().map(p99).enumerate().max_by_key(|(_, oldest)| *oldest)?;
    (oldest > MAX_TIMES * others).then(|| {
        format!(
            "gradients of worker {worker} miss up to {oldest} updates (99 of 100), {others} would \
             be an even pace; bound it with sync.consistency = \"bounded\", or shorten their steps \
             with sync.staleness_weight"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_does_not_count() {
        assert_eq!(p99(&BTreeMap::from([(1, 99), (50, 1)])), 1);
        assert_eq!(p99(&BTreeMap::from([(1, 98), (50, 2)])), 50);
        assert_eq!(p99(&BTreeMap::new()), 0);
    }

    #[test]
    fn the_worker_with_the_oldest_gradients_is_named_where_they_are_much_too_old() {
        let even = BTreeMap::from([(1, 10), (2, 90)]);
        assert_eq!(warning(&[even.clone(), even.clone(), BTreeMap::from([(8, 100)])]), None);
        let said = warning(&[even.clone(), BTreeMap::from([(9, 100)]), even]).expect("too old");
        assert!(said.starts_with("gradients of worker 1 miss up to 9 updates"), "{said}");
        assert_eq!(warning(&[BTreeMap::from([(1000, 1)])]), None, "alone nobody is ahead");
    }
}
