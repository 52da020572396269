//! Rows that a worker asks for again and again, and does not ask for in every step.
//!
//! By Zipf's law a few rows are touched by nearly every batch. A worker counts in how many steps it
//! has touched each row, and of the most touched ones, as many as the cache holds, it takes the
//! values of some steps ago for good enough: until they are `every` steps old, or, where staleness
//! is bounded, have missed more updates than that. Gradients are pushed in every step all the same.

use std::collections::BTreeMap;

/// See the module's text.
#[derive(Debug, Default)]
pub struct HotRows {
    capacity: usize,
    every: u64,
    bound: Option<u64>,
    /// In how many steps each row was touched.
    counts: Vec<u64>,
    /// When each row that is kept was fetched.
    kept: BTreeMap<u32, Fetched>,
}

/// When something was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fetched {
    step: u64,
    version: u64,
}

impl HotRows {
    /// Keeps at most `capacity` of so many rows for `every` steps, and for `bound` updates where
    /// that is asked for.
    pub fn new(num_rows: usize, capacity: usize, every: u64, bound: Option<u64>) -> Self {
        let counts = vec![0; if capacity > 0 { num_rows } else { 0 }];
        Self { capacity, every, bound, counts, kept: BTreeMap::new() }
    }

    /// Some rows are touched once more.
    pub fn touch(&mut self, rows: &[u32]) {
        if self.capacity > 0 {
            for row in rows {
                self.counts[*row as usize] += 1;
            }
        }
    }

    /// How many updates a row that is kept has missed, where that is good enough for a step which
    /// sees this version of the row's server.
    pub fn age(&self, row: u32, step: u64, version: u64) -> Option<u64> {
        let fetched = self.kept.get(&row)?;
        let age = version.saturating_sub(fetched.version);
        let is_fresh = step.saturating_sub(fetched.step) < self.every;
        (is_fresh && self.bound.is_none_or(|bound| age <= bound)).then_some(age)
    }

    /// A row has come.
    pub fn fetched(&mut self, row: u32, step: u64, version: u64) {
        if self.capacity == 0 {
            return;
        }
        if self.kept.len() >= self.capacity && !self.kept.contains_key(&row) {
            let count = |row: &u32| self.counts[*row as usize];
            let Some(coldest) = self.kept.keys().min_by_key(|row| count(row)).copied() else {
                return;
            };
            if count(&coldest) >= count(&row) {
                return;
            }
            self.kept.remove(&coldest);
        }
        self.kept.insert(row, Fetched { step, version });
    }

    /// All rows of a server have come before a step; those that are kept are as new as can be.
    pub fn renewed(&mut self, rows: &[u32], step: u64, version: u64) {
        for (row, fetched) in &mut self.kept {
            if rows.binary_search(row).is_ok() {
                *fetched = Fetched { step, version };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_touched_rows_are_kept_until_they_are_too_old() {
        let mut hot = HotRows::new(10, 2, 3, None);
        for step in 0..4 {
            hot.touch(&[7, 3]);
            hot.touch(&[7]);
            let rows = [7, 3].map(|row| hot.age(row, step, step));
            // Fetched in step 0, good for steps 1 and 2, and fetched again.
            assert_eq!(rows, if step % 3 == 0 { [None, None] } else { [Some(step); 2] });
            if step % 3 == 0 {
                hot.fetched(7, step, step);
                hot.fetched(3, step, step);
            }
        }
        // Somebody who comes once finds no place, and who comes more often than others does.
        hot.touch(&[1]);
        hot.fetched(1, 3, 3);
        assert_eq!((hot.age(1, 3, 3), hot.age(3, 3, 3)), (None, Some(0)));
        (0..5).for_each(|_| hot.touch(&[1]));
        hot.fetched(1, 3, 3);
        assert_eq!(
            (hot.age(1, 3, 3), hot.age(3, 3, 3), hot.age(7, 3, 3)),
            (Some(0), None, Some(0))
        );
    }

    #[test]
    fn a_bound_on_staleness_holds_for_what_is_kept() {
        let mut hot = HotRows::new(4, 4, 100, Some(2));
        hot.touch(&[0]);
        hot.fetched(0, 0, 10);
        assert_eq!([10, 12, 13].map(|version| hot.age(0, 1, version)), [Some(0), Some(2), None]);
        hot.renewed(&[0, 2], 5, 20);
        assert_eq!(hot.age(0, 6, 21), Some(1));
    }

    #[test]
    fn nothing_is_kept_where_there_is_no_room() {
        let mut hot = HotRows::new(4, 0, 100, None);
        hot.touch(&[0]);
        hot.fetched(0, 0, 0);
        assert_eq!(hot.age(0, 0, 0), None);
    }
}
