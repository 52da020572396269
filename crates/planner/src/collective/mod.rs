//! What collectives cost by closed form: how many latencies follow each other, and how many times
//! the vector passes the busiest link.
//!
//! A closed form is a schedule summed up by hand. It says at a glance which algorithm wins where,
//! and it is what textbooks print; the schedule's own price ([`lockstep_schedule::price`]) is what
//! the engine goes by. Where both make the same assumptions they agree to the last digit, and
//! tests hold them together.
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
//! [`all_to_all`] is no sum, but is priced the same way. [`nccl`] has the constants of another
//! library's closed forms.

pub mod all_to_all;
pub mod butterfly;
pub mod hierarchical;
pub mod parameter_server;
pub mod rabenseifner;
pub mod ring;
pub mod tree;

pub mod crossings;
pub mod nccl;

use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::Link;

/// The cost of an algorithm for a number of ranks, whatever the link and the vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedForm {
    /// Messages that wait for each other: each costs a latency.
    pub rounds: u64,
    /// How much of the vector passes the busiest link: so many parts …
    pub parts: u64,
    /// … of which the vector has so many.
    pub of: u64,
}

impl ClosedForm {
    /// What passes the busiest link when the vector has so many bytes.
    pub fn bytes(self, vector: Bytes) -> f64 {
        vector.0 as f64 * self.parts as f64 / self.of as f64
    }

    /// How long it takes.
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
        let volume = |form: Self| form.parts as f64 / form.of as f64;
        let more_rounds = self.rounds as f64 - other.rounds as f64;
        let more_volume = volume(other) - volume(self);
        let bytes = more_rounds * link.latency.0 * link.bandwidth.0 / more_volume;
        (bytes.is_finite() && bytes > 0.0).then(|| Bytes(bytes.round() as u64))
    }
}

/// How often a number must be halved, rounded up.
const fn log2_up(num_ranks: usize) -> u64 {
    num_ranks.next_power_of_two().trailing_zeros() as u64
}
