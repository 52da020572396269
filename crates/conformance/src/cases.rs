//! Which cases of a long suite are tried, and numbers to make them from.
//!
//! A suite of hundreds of cases is too long for every change, and a fixed few would never find
//! anything new. So each change tries a few that its commit chooses: cases are numbered, the same
//! number is the same case for ever, and a failure tells it.

use lockstep_platform::World;

/// The variable that asks for all cases, as `cargo xtask soak` does.
pub const SOAK: &str = "LOCKSTEP_SOAK";

/// The variable with the commit that chooses a few, as `cargo xtask ci` sets it.
pub const COMMIT: &str = "LOCKSTEP_COMMIT";

/// The cases to try: all of `num_all`, or, evenly spread, the `num_few` that the commit chooses.
pub fn chosen(world: &World, num_all: u64, num_few: u64) -> Vec<u64> {
    if world.host().env(SOAK).is_some() {
        return (0..num_all).collect();
    }
    few(world.host().env(COMMIT).as_deref(), num_all, num_few)
}

fn few(commit: Option<&str>, num_all: u64, num_few: u64) -> Vec<u64> {
    let mut start = Random(0);
    for byte in commit.unwrap_or_default().bytes() {
        start = Random(start.number() ^ u64::from(byte));
    }
    let every = num_all / num_few;
    let first = start.number() % every;
    (0..num_few).map(|index| first + index * every).collect()
}

/// Numbers that depend on nothing but the seed.
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next one, below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() >> 16) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::few;

    #[test]
    fn commits_choose_among_all_cases_and_the_same_ones_again() {
        let mut seen = [false; 200];
        for commit in 0..400 {
            let commit = format!("{commit:040x}");
            let cases = few(Some(&commit), 200, 10);
            assert_eq!((cases.len(), &cases), (10, &few(Some(&commit), 200, 10)));
            for case in cases {
                seen[case as usize] = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen), "every case is somebody's");
        assert_eq!(few(None, 200, 10).len(), 10);
    }
}
