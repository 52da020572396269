//! Cost of collectives in closed form: the number of sequential latencies, and the share of the
//! vector on the busiest link.
//!
//! A closed form is a schedule summed up by hand. It shows which algorithm wins where (Thakur,
//! Rabenseifner and Gropp 2005); the engine selects by the cost of the schedule itself
//! ([`lockstep_schedule::price`]). Where both make the same assumptions they agree to the last
//! digit, and tests compare them.
//!
//! | all-reduce of d bytes over n ranks | time |
//! |---|---|
//! | [`ring`] | 2(n-1)α + 2(n-1)/n·d/B |
//! | [`tree`] | 2⌈log2 n⌉(α + d/B) |
//! | [`butterfly`] | log2 n·(α + d/B) |
//! | [`rabenseifner`] | 2 log2 n·α + 2(n-1)/n·d/B |
//! | [`hierarchical`] | a ring's halves inside nodes, a ring's all-reduce of a share between them |
//! | [`parameter_server`], s servers | 2α + 2n/s·d/B |
//!
//! [`all_to_all`] is priced in the same form; [`forms`] lists all of them by operation. [`links`] prices collectives of a [`group`] on the
//! links of a cluster, which groups share (`contention`).

pub mod all_to_all;
pub mod butterfly;
pub mod hierarchical;
pub mod parameter_server;
pub mod rabenseifner;
pub mod ring;
pub mod tree;

pub mod crossings;
pub mod forms;

mod contention;
pub mod group;
pub mod links;

use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::Link;

/// Cost of an algorithm for a number of ranks, independent of the link and the vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedForm {
    /// Number of sequential messages, each with a latency.
    pub rounds: u64,
    /// Parts of the vector that pass the busiest link.
    pub parts: u64,
    /// Number of parts of the vector.
    pub of: u64,
}

impl ClosedForm {
    /// Share of the vector that passes the busiest link.
    pub fn share(self) -> f64 {
        self.parts as f64 / self.of as f64
    }

    /// Bytes that pass the busiest link.
    pub fn bytes(self, vector: Bytes) -> f64 {
        vector.0 as f64 * self.parts as f64 / self.of as f64
    }

    /// Time of the collective.
    pub fn seconds(self, vector: Bytes, link: Link) -> Seconds {
        link.latency * self.rounds as f64 + Seconds(self.bytes(vector) / link.bandwidth.0)
    }

    /// The length of the vector at which both take equally long, if there is one: below it the one
    /// with fewer rounds wins, above it the one that moves less.
    ///
    /// ```
    /// use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
    /// use lockstep_planner::collective::{ring, tree};
    /// use lockstep_schedule::Link;
    ///
    /// let link = Link { latency: Seconds(10e-6), bandwidth: BytesPerSecond(50e9) };
    /// let (ring, tree) = (ring::all_reduce(256), tree::all_reduce(256));
    /// let even = ring.crossover(tree, link).expect("they cross");
    /// assert_eq!(even.0, 17_633_017);
    /// assert!(tree.seconds(Bytes(1 << 20), link) < ring.seconds(Bytes(1 << 20), link));
    /// assert!(tree.seconds(Bytes(1 << 30), link) > ring.seconds(Bytes(1 << 30), link));
    /// ```
    pub fn crossover(self, other: Self, link: Link) -> Option<Bytes> {
        let more_rounds = self.rounds as f64 - other.rounds as f64;
        let more_volume = other.share() - self.share();
        let bytes = more_rounds * link.latency.0 * link.bandwidth.0 / more_volume;
        (bytes.is_finite() && bytes > 0.0).then(|| Bytes(bytes.round() as u64))
    }
}

/// ⌈log2 n⌉.
const fn log2_up(num_ranks: usize) -> u64 {
    num_ranks.next_power_of_two().trailing_zeros() as u64
}
