//! Selection of cases of a long test suite by commit, and a seeded generator.
//!
//! Hundreds of cases take too long for every change, and a fixed few would never find new failures.
//! Each commit therefore selects a few. Cases are numbered; a number always means the same case,
//! and a failure reports it.

use lockstep_platform::World;

/// Environment variable that selects all cases; `cargo xtask soak` sets it.
pub const SOAK: &str = "LOCKSTEP_SOAK";

/// Environment variable with the commit hash; `cargo xtask ci` sets it.
pub const COMMIT: &str = "LOCKSTEP_COMMIT";

/// Selected cases: all of `num_all`, or `num_few` of them, evenly spaced, chosen by the commit.
pub fn select_cases(world: &World, num_all: u64, num_few: u64) -> Vec<u64> {
    if world.host().env(SOAK).is_some() {
        return (0..num_all).collect();
    }
    select_few(world.host().env(COMMIT).as_deref(), num_all, num_few)
}

/// `num_few` of the cases, chosen by the commit, or all in a long suite.
pub fn some<T>(cases: impl IntoIterator<Item = T>, num_few: usize) -> Vec<T> {
    let mut cases: Vec<Option<T>> = cases.into_iter().map(Some).collect();
    let (num_all, num_few) = (cases.len() as u64, num_few.min(cases.len()) as u64);
    let selected = select_cases(&lockstep_platform::real(), num_all, num_few);
    selected.into_iter().filter_map(|case| cases[case as usize].take()).collect()
}

fn select_few(commit: Option<&str>, num_all: u64, num_few: u64) -> Vec<u64> {
    let mut start = Random(0);
    for byte in commit.unwrap_or_default().bytes() {
        start = Random(start.number() ^ u64::from(byte));
    }
    let first = start.number() % num_all.max(1);
    let mut cases: Vec<u64> =
        (0..num_few).map(|index| (first + index * num_all / num_few) % num_all).collect();
    cases.sort_unstable();
    cases
}

/// SplitMix64 generator (Steele 2014).
pub struct Random(pub u64);

impl Random {
    /// Next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Next number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() >> 16) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::select_few;

    #[test]
    fn commits_cover_all_cases_and_select_reproducibly() {
        for (num_all, num_few) in [(200, 10), (14, 5), (3, 3)] {
            let mut is_selected = vec![false; num_all as usize];
            for commit in 0..400 {
                let commit = format!("{commit:040x}");
                let cases = select_few(Some(&commit), num_all, num_few);
                assert_eq!(cases, select_few(Some(&commit), num_all, num_few));
                assert!(cases.is_sorted_by(|a, b| a < b), "{cases:?}");
                assert_eq!(cases.len() as u64, num_few);
                for case in cases {
                    is_selected[case as usize] = true;
                }
            }
            assert!(is_selected.iter().all(|&is| is), "every case is selected by a commit");
        }
        assert_eq!(select_few(None, 200, 10).len(), 10);
    }
}
