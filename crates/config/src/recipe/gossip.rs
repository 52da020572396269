//! Gossip averaging: each worker averages its weights with its neighbours on a graph.

use std::fmt;

choices! {
    /// Communication graph of gossip averaging.
    GraphName {
        /// Both neighbours on a ring.
        Ring = "ring",
        /// Four neighbours on a torus.
        Torus = "torus",
        /// Ranks at distance 1, 2, 4, 8, … in both directions.
        Exponential = "exponential",
        /// `sync.degree` neighbours on a random regular graph.
        RandomRegular = "random-regular",
        /// All workers.
        Complete = "complete",
        /// The next rank on a ring, one direction.
        DirectedRing = "directed-ring",
        /// One rank per step, at distance 1, 2, 4, … in turn, one direction.
        OnePeer = "one-peer",
        /// The next rank on a ring and random others, one direction.
        RandomDirected = "random-directed",
    }
}

impl GraphName {
    /// Graphs with a configurable number of neighbours.
    pub(crate) const WITH_DEGREE: &'static [&'static str] = &["random-regular", "random-directed"];

    /// Whether edges are one-directional, which needs push-sum to correct the average.
    pub const fn is_directed(self) -> bool {
        matches!(self, Self::DirectedRing | Self::OnePeer | Self::RandomDirected)
    }
}

/// Settings of gossip averaging.
#[derive(Debug, Clone, PartialEq)]
pub struct Gossip {
    /// Communication graph.
    pub graph: GraphName,
    /// Number of neighbours, where the graph leaves it open.
    pub degree: usize,
}
