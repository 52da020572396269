//! Row cache: a worker reuses frequent embedding rows for several steps instead of pulling them in
//! each.
//!
//! By Zipf's law a few rows occur in nearly every batch. A worker counts the steps in which it has
//! used each row and caches the most used ones, up to a capacity, until they are `every` steps old
//! or, with bounded staleness, have missed more updates than the bound. Gradients are pushed in
//! every step.

use std::collections::BTreeMap;

/// Cached rows and their ages.
#[derive(Debug, Default)]
pub struct RowCache {
    capacity: usize,
    every: u64,
    bound: Option<u64>,
    /// Number of steps in which each row was used.
    counts: Vec<u64>,
    /// Fetch time of each cached row.
    cached: BTreeMap<u32, FetchTime>,
}

/// Time at which a row was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FetchTime {
    step: u64,
    version: u64,
}

impl RowCache {
    /// Caches at most `capacity` of `num_rows` rows for `every` steps, and for `bound` updates if
    /// bounded.
    pub fn new(num_rows: usize, capacity: usize, every: u64, bound: Option<u64>) -> Self {
        let counts = vec![0; if capacity > 0 { num_rows } else { 0 }];
        Self { capacity, every, bound, counts, cached: BTreeMap::new() }
    }

    /// Counts a use of these rows.
    pub fn touch(&mut self, rows: &[u32]) {
        if self.capacity > 0 {
            for row in rows {
                self.counts[*row as usize] += 1;
            }
        }
    }

    /// Number of updates that a cached row has missed, if it is fresh enough for a step at this
    /// version of the row's server.
    pub fn age(&self, row: u32, step: u64, version: u64) -> Option<u64> {
        let insert = self.cached.get(&row)?;
        let age = version.saturating_sub(insert.version);
        let is_fresh = step.saturating_sub(insert.step) < self.every;
        (is_fresh && self.bound.is_none_or(|bound| age <= bound)).then_some(age)
    }

    /// Caches a fetched row, if it is used more than the least used cached one.
    pub fn insert(&mut self, row: u32, step: u64, version: u64) {
        if self.capacity == 0 {
            return;
        }
        if self.cached.len() >= self.capacity && !self.cached.contains_key(&row) {
            let count = |row: &u32| self.counts[*row as usize];
            let Some(least_used) = self.cached.keys().min_by_key(|row| count(row)).copied() else {
                return;
            };
            if count(&least_used) >= count(&row) {
                return;
            }
            self.cached.remove(&least_used);
        }
        self.cached.insert(row, FetchTime { step, version });
    }

    /// Refreshes the cached rows after all rows of a server were fetched.
    pub fn refresh(&mut self, rows: &[u32], step: u64, version: u64) {
        for (row, insert) in &mut self.cached {
            if rows.binary_search(row).is_ok() {
                *insert = FetchTime { step, version };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_rows_are_cached_until_they_expire() {
        let mut row_cache = RowCache::new(10, 2, 3, None);
        for step in 0..4 {
            row_cache.touch(&[7, 3]);
            row_cache.touch(&[7]);
            let rows = [7, 3].map(|row| row_cache.age(row, step, step));
            // Fetched in step 0, fresh in steps 1 and 2, then fetched again.
            assert_eq!(rows, if step % 3 == 0 { [None, None] } else { [Some(step); 2] });
            if step % 3 == 0 {
                row_cache.insert(7, step, step);
                row_cache.insert(3, step, step);
            }
        }
        // A row used once is not cached; a row used more often than another replaces it.
        row_cache.touch(&[1]);
        row_cache.insert(1, 3, 3);
        assert_eq!((row_cache.age(1, 3, 3), row_cache.age(3, 3, 3)), (None, Some(0)));
        (0..5).for_each(|_| row_cache.touch(&[1]));
        row_cache.insert(1, 3, 3);
        assert_eq!(
            (row_cache.age(1, 3, 3), row_cache.age(3, 3, 3), row_cache.age(7, 3, 3)),
            (Some(0), None, Some(0))
        );
    }

    #[test]
    fn a_staleness_bound_applies_to_cached_rows() {
        let mut row_cache = RowCache::new(4, 4, 100, Some(2));
        row_cache.touch(&[0]);
        row_cache.insert(0, 0, 10);
        assert_eq!(
            [10, 12, 13].map(|version| row_cache.age(0, 1, version)),
            [Some(0), Some(2), None]
        );
        row_cache.refresh(&[0, 2], 5, 20);
        assert_eq!(row_cache.age(0, 6, 21), Some(1));
    }

    #[test]
    fn a_cache_of_no_rows_keeps_nothing() {
        let mut row_cache = RowCache::new(4, 0, 100, None);
        row_cache.touch(&[0]);
        row_cache.insert(0, 0, 0);
        assert_eq!(row_cache.age(0, 0, 0), None);
    }
}
