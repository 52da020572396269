//! Worse hardware than there is: links that are slow, far, unsteady or lossy, and workers that
//! take a given time to compute, or stand still now and then.
//!
//! A claim about networks or stragglers is worth as much as the machine it was seen on. With these
//! settings a laptop plays that machine, the same way every time: what is random follows from
//! `emulate.seed`.

use std::fmt;

use crate::units::{BytesPerSecond, Seconds};

/// Worse hardware than there is.
#[derive(Debug, Clone, PartialEq)]
pub struct Emulate {
    /// What all links are like.
    pub default_link: LinkConditions,
    /// Links that are like something else.
    pub links: Vec<EmulatedLink>,
    /// The time that a micro-batch takes every worker at least; 0 lets it take what it takes.
    pub microbatch: Seconds,
    /// Workers that compute more slowly than they could.
    pub slow: Vec<SlowWorker>,
    /// Decides everything that is random about it.
    pub seed: u64,
}

/// What a link is like, both ways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkConditions {
    /// What it carries at most; 0 does not limit.
    pub bandwidth: BytesPerSecond,
    /// The time that a byte takes at least.
    pub latency: Seconds,
    /// The most that it takes longer than that; anything up to it is equally likely.
    pub jitter: Seconds,
    /// The share of packets that are lost on the way and sent again.
    pub loss: f64,
}

impl LinkConditions {
    /// A link that is left as it is.
    pub const NONE: Self = Self {
        bandwidth: BytesPerSecond(0.0),
        latency: Seconds(0.0),
        jitter: Seconds(0.0),
        loss: 0.0,
    };
}

/// A link that differs from the usual ones; what is not said is as usual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmulatedLink {
    /// The ranks at its ends.
    pub ranks: [usize; 2],
    /// What it carries at most.
    pub bandwidth: Option<BytesPerSecond>,
    /// The time that a byte takes at least.
    pub latency: Option<Seconds>,
    /// The most that it takes longer than that.
    pub jitter: Option<Seconds>,
    /// The share of packets that are lost.
    pub loss: Option<f64>,
    /// From how long after its first byte on it is like that; until then it is as usual.
    pub after: Seconds,
}

impl EmulatedLink {
    /// A link that is as usual.
    pub const fn between(one: usize, other: usize) -> Self {
        let (bandwidth, latency, jitter, loss) = (None, None, None, None);
        Self { ranks: [one, other], bandwidth, latency, jitter, loss, after: Seconds(0.0) }
    }

    fn joins(&self, one: usize, other: usize) -> bool {
        self.ranks == [one, other] || self.ranks == [other, one]
    }
}

choices! {
    /// How the time that a slow worker stands still is distributed.
    Distribution {
        /// Always the same.
        Constant = "constant",
        /// From nothing to twice the mean.
        Uniform = "uniform",
        /// Mostly short, now and then several times the mean.
        Exponential = "exponential",
        /// The logarithm is normal with deviation one: some are ten times the mean.
        Lognormal = "lognormal",
        /// A heavy tail of shape two: a few are very long.
        Pareto = "pareto",
    }
}

/// A worker that computes more slowly than it could.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowWorker {
    /// Which.
    pub rank: usize,
    /// How many times as long as without this a micro-batch takes it, in the mean; at least 1.
    pub factor: f64,
    /// How that varies from micro-batch to micro-batch.
    pub distribution: Distribution,
}

impl Emulate {
    /// Nothing is emulated.
    pub const fn none() -> Self {
        Self {
            default_link: LinkConditions::NONE,
            links: Vec::new(),
            microbatch: Seconds(0.0),
            slow: Vec::new(),
            seed: 0,
        }
    }

    /// What the link between two ranks is like.
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

    /// From how long after its first byte on a link is what [`Emulate::between`] says.
    pub fn onset(&self, one: usize, other: usize) -> Seconds {
        let mut links = self.links.iter().rev();
        let link = links.find(|link| link.joins(one, other));
        link.map_or(Seconds(0.0), |link| link.after)
    }

    /// Whether any link is made worse than it is.
    pub fn has_links(&self) -> bool {
        self.default_link != LinkConditions::NONE || !self.links.is_empty()
    }

    /// What is emulated, in words, if anything is.
    pub fn description(&self) -> Option<String> {
        let computes_otherwise = self.microbatch.0 > 0.0 || !self.slow.is_empty();
        (self.has_links() || computes_otherwise).then(|| self.to_string())
    }

    /// The slowness of a worker, if it has any.
    pub fn slowness(&self, rank: usize) -> Option<&SlowWorker> {
        self.slow.iter().rfind(|slow| slow.rank == rank && slow.factor > 1.0)
    }
}

impl fmt::Display for LinkConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |seconds: Seconds| seconds.0 * 1e3;
        let mut words = Vec::new();
        if self.latency.0 > 0.0 {
            words.push(format!("latency {} ms", millis(self.latency)));
        }
        if self.jitter.0 > 0.0 {
            words.push(format!("jitter {} ms", millis(self.jitter)));
        }
        if self.bandwidth.0 > 0.0 {
            words.push(format!("{} MB/s", self.bandwidth.0 / 1e6));
        }
        if self.loss > 0.0 {
            words.push(format!("{} % lost", self.loss * 100.0));
        }
        if words.is_empty() {
            words.push("as they are".to_owned());
        }
        f.write_str(&words.join(", "))
    }
}

/// What is emulated, in words; nothing where nothing is.
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
    fn a_link_takes_from_the_usual_ones_what_it_does_not_say() {
        let usual = LinkConditions { latency: Seconds(0.001), ..LinkConditions::NONE };
        let link =
            EmulatedLink { bandwidth: Some(BytesPerSecond(1e6)), ..EmulatedLink::between(2, 1) };
        let emulate = Emulate { default_link: usual, links: vec![link], ..Emulate::none() };
        assert_eq!(emulate.between(0, 1), usual);
        let slow = LinkConditions { bandwidth: BytesPerSecond(1e6), ..usual };
        assert_eq!((emulate.between(1, 2), emulate.between(2, 1)), (slow, slow));
        let words = "links latency 1 ms; link 2-1 latency 1 ms, 1 MB/s";
        assert_eq!(emulate.to_string(), words);
    }
}
