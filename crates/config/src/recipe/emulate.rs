//! Emulated hardware: links with limited bandwidth, latency, jitter and loss, and slow workers.
//!
//! The settings reproduce a cluster on one machine for experiments about networks and stragglers.
//! All randomness follows from `emulate.seed`.

use std::fmt;

use crate::units::{BytesPerSecond, Seconds};

/// Emulated links and workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Emulate {
    /// Conditions of all links.
    pub default_link: LinkConditions,
    /// Links with other conditions.
    pub links: Vec<EmulatedLink>,
    /// Minimum duration of a micro-batch; 0 adds nothing.
    pub microbatch: Seconds,
    /// Slow workers.
    pub slow: Vec<SlowWorker>,
    /// Seed of all randomness.
    pub seed: u64,
}

/// Conditions of a link, in both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkConditions {
    /// Bandwidth limit; 0 does not limit.
    pub bandwidth: BytesPerSecond,
    /// Added latency.
    pub latency: Seconds,
    /// Maximum of the uniformly distributed extra delay.
    pub jitter: Seconds,
    /// Fraction of packets that are lost and retransmitted.
    pub loss: f64,
}

impl LinkConditions {
    /// An unmodified link.
    pub const NONE: Self = Self {
        bandwidth: BytesPerSecond(0.0),
        latency: Seconds(0.0),
        jitter: Seconds(0.0),
        loss: 0.0,
    };
}

/// A link with other conditions; omitted values are those of all links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmulatedLink {
    /// The ranks at its ends.
    pub ranks: [usize; 2],
    /// Bandwidth limit.
    pub bandwidth: Option<BytesPerSecond>,
    /// Added latency.
    pub latency: Option<Seconds>,
    /// Maximum extra delay.
    pub jitter: Option<Seconds>,
    /// Fraction of lost packets.
    pub loss: Option<f64>,
    /// Time after the first byte at which the conditions begin.
    pub after: Seconds,
}

impl EmulatedLink {
    /// A link with the conditions of all links.
    pub const fn between(one: usize, other: usize) -> Self {
        let (bandwidth, latency, jitter, loss) = (None, None, None, None);
        Self { ranks: [one, other], bandwidth, latency, jitter, loss, after: Seconds(0.0) }
    }

    fn joins(&self, one: usize, other: usize) -> bool {
        self.ranks == [one, other] || self.ranks == [other, one]
    }
}

choices! {
    /// Distribution of a slow worker's extra time.
    Distribution {
        /// Constant.
        Constant = "constant",
        /// Uniform from zero to twice the mean.
        Uniform = "uniform",
        /// Exponential.
        Exponential = "exponential",
        /// Log-normal with a standard deviation of one: some values are ten times the mean.
        Lognormal = "lognormal",
        /// Pareto of shape two: a heavy tail.
        Pareto = "pareto",
    }
}

/// A slow worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowWorker {
    /// Its rank.
    pub rank: usize,
    /// Mean slowdown of a micro-batch; at least 1.
    pub factor: f64,
    /// Distribution of the slowdown over micro-batches.
    pub distribution: Distribution,
}

impl Emulate {
    /// No emulation.
    pub const fn none() -> Self {
        Self {
            default_link: LinkConditions::NONE,
            links: Vec::new(),
            microbatch: Seconds(0.0),
            slow: Vec::new(),
            seed: 0,
        }
    }

    /// Conditions of the link between two ranks.
    pub fn between(&self, one: usize, other: usize) -> LinkConditions {
        let mut links = self.links.iter().rev();
        let Some(link) = links.find(|link| link.joins(one, other)) else {
            return self.default_link;
        };
        LinkConditions {
            bandwidth: link.bandwidth.unwrap_or(self.default_link.bandwidth),
            latency: link.latency.unwrap_or(self.default_link.latency),
            jitter: link.jitter.unwrap_or(self.default_link.jitter),
            loss: link.loss.unwrap_or(self.default_link.loss),
        }
    }

    /// Time after the first byte at which [`Emulate::between`] applies to a link.
    pub fn onset(&self, one: usize, other: usize) -> Seconds {
        let mut links = self.links.iter().rev();
        let link = links.find(|link| link.joins(one, other));
        link.map_or(Seconds(0.0), |link| link.after)
    }

    /// Whether any link is emulated.
    pub fn has_links(&self) -> bool {
        self.default_link != LinkConditions::NONE || !self.links.is_empty()
    }

    /// Description of the emulation, if there is any.
    pub fn description(&self) -> Option<String> {
        let has_slow_workers = self.microbatch.0 > 0.0 || !self.slow.is_empty();
        (self.has_links() || has_slow_workers).then(|| self.to_string())
    }

    /// The slowdown of a worker, if it has one.
    pub fn slowness(&self, rank: usize) -> Option<&SlowWorker> {
        self.slow.iter().rfind(|slow| slow.rank == rank && slow.factor > 1.0)
    }
}

impl fmt::Display for LinkConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |seconds: Seconds| seconds.0 * 1e3;
        let mut parts = Vec::new();
        if self.latency.0 > 0.0 {
            parts.push(format!("latency {} ms", millis(self.latency)));
        }
        if self.jitter.0 > 0.0 {
            parts.push(format!("jitter {} ms", millis(self.jitter)));
        }
        if self.bandwidth.0 > 0.0 {
            parts.push(format!("{} MB/s", self.bandwidth.0 / 1e6));
        }
        if self.loss > 0.0 {
            parts.push(format!("{} % lost", self.loss * 100.0));
        }
        if parts.is_empty() {
            parts.push("unmodified".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

/// Description of the emulation; empty if there is none.
impl fmt::Display for Emulate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.has_links() {
            parts.push(format!("links {}", self.default_link));
        }
        for link in &self.links {
            let [one, other] = link.ranks;
            let after = link.after.0;
            let onset = if after > 0.0 { format!(" after {after} s") } else { String::new() };
            parts.push(format!("link {one}-{other} {}{onset}", self.between(one, other)));
        }
        if self.microbatch.0 > 0.0 {
            parts.push(format!("a micro-batch takes {} ms", self.microbatch.0 * 1e3));
        }
        for SlowWorker { rank, factor, distribution } in &self.slow {
            parts.push(format!("worker {rank} {factor} times slower ({distribution})"));
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_inherits_the_values_that_it_omits() {
        let usual = LinkConditions { latency: Seconds(0.001), ..LinkConditions::NONE };
        let link =
            EmulatedLink { bandwidth: Some(BytesPerSecond(1e6)), ..EmulatedLink::between(2, 1) };
        let emulate = Emulate { default_link: usual, links: vec![link], ..Emulate::none() };
        assert_eq!(emulate.between(0, 1), usual);
        let slow = LinkConditions { bandwidth: BytesPerSecond(1e6), ..usual };
        assert_eq!((emulate.between(1, 2), emulate.between(2, 1)), (slow, slow));
        let expected = "links latency 1 ms; link 2-1 latency 1 ms, 1 MB/s";
        assert_eq!(emulate.to_string(), expected);
    }
}
