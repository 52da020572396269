//! Emulated hardware: links with limited bandwidth, latency, jitter and loss, and slow workers.
//!
//! The settings reproduce a cluster on one machine for experiments about networks and stragglers.
//! All randomness follows from `emulate.seed`.

use std::fmt;

use super::limits::MAX_WORKERS;
use crate::field::{Blank, field};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, entry, topic};
use crate::units::{BytesPerSecond, Seconds};
use crate::value::Value;
use crate::value_type::Bound::{self, Closed, Open};
use crate::value_type::ValueType;

/// Largest delay in milliseconds.
const MAX_DELAY: Bound = Closed(10_000.0);

/// Largest packet loss; no connection survives more than half.
const MAX_LOSS: Bound = Closed(0.5);

/// Largest number of links.
const MAX_ENTRIES: usize = 256;

const TCP: &[&str] = &["tcp"];

topic! {
    /// Emulation of slower links and workers. Never changes a bit of the result.
    pub struct Emulate at emulate, table "emulate", layout() {
        /// Conditions of all links.
        part default_link: LinkConditions;

        /// Links with other conditions, each with the two ranks at its ends; omitted values are
        /// those of all links. With after_s the conditions begin that many seconds after the link's
        /// first byte.
        links: Vec<EmulatedLink> = none, at_most(MAX_ENTRIES), when("run.transport", TCP);

        /// Minimum duration of a micro-batch on every worker, in milliseconds: workers that share
        /// cores then behave like separate devices. 0 adds nothing.
        microbatch as microbatch_ms: Seconds = 0.0, float(Closed(0.0), MAX_DELAY);

        /// Minimum time in which the data loader of every worker prepares a batch, in milliseconds.
        /// 0 adds nothing.
        data as data_ms: Seconds = 0.0, float(Closed(0.0), MAX_DELAY);

        /// Bandwidth at which every worker writes checkpoints, in bytes per second, a number or
        /// text such as "100MB"; 0 does not limit.
        disk_bandwidth: BytesPerSecond = 0;

        /// Slow workers: their micro-batches take factor times as long on average.
        slow: Vec<SlowWorker> = none, at_most(MAX_WORKERS as usize);

        /// Seed of packet delays and losses and of the slow workers' pauses.
        seed: u64 = 0, integer(0, i64::MAX);
    }
}

topic! {
    /// Conditions of a link, in both directions.
    #[derive(Copy)]
    pub struct LinkConditions at emulate.default_link, among "emulate" {
        /// Bandwidth limit of each link in bytes per second, a number or text such as "100MB"; 0
        /// does not limit.
        bandwidth: BytesPerSecond = 0, when("run.transport", TCP);

        /// Added latency of each link in milliseconds; senders do not block on it.
        latency as latency_ms: Seconds = 0.0, float(Closed(0.0), MAX_DELAY),
            when("run.transport", TCP);

        /// Maximum of a uniformly distributed extra delay per packet, in milliseconds.
        jitter as jitter_ms: Seconds = 0.0, float(Closed(0.0), MAX_DELAY),
            when("run.transport", TCP);

        /// Fraction of packets that are lost and retransmitted: after a round trip, and at the end
        /// of a message after 200 ms.
        loss: f64 = 0.0, float(Closed(0.0), MAX_LOSS), when("run.transport", TCP);
    }
}

impl LinkConditions {
    /// An unmodified link.
    pub const NONE: Self = Self::BLANK;
}

entry! {
    /// A link with other conditions; omitted values are those of all links.
    #[derive(Copy)]
    pub struct EmulatedLink {
        /// The ranks at its ends.
        ranks: [usize; 2] = required;
        /// Bandwidth limit.
        bandwidth: Option<BytesPerSecond> = none;
        /// Added latency.
        latency as latency_ms: Option<Seconds> = none, float(Closed(0.0), MAX_DELAY);
        /// Maximum extra delay.
        jitter as jitter_ms: Option<Seconds> = none, float(Closed(0.0), MAX_DELAY);
        /// Fraction of lost packets.
        loss: Option<f64> = none, float(Closed(0.0), MAX_LOSS);
        /// Time after the first byte at which the conditions begin.
        after as after_s: Seconds = (Seconds(0.0)), float(Closed(0.0), Closed(1e6));
    }
}

// The ranks at the ends of a link.
field!(
    [usize; 2]: ValueType::List { of: &ValueType::integers(0, MAX_WORKERS - 1), max: 2 },
    blank [0, 0],
    to |ranks| Value::List(ranks.iter().map(usize::to_value).collect()),
    from |v| {
        let ranks: Vec<usize> = v.as_list().iter().map(usize::from_value).collect();
        // A rule refuses a link without two ends; until then it connects a rank to itself.
        let first = ranks.first().copied().unwrap_or(0);
        ranks.try_into().unwrap_or([first, first])
    }
);

impl EmulatedLink {
    /// A link with the conditions of all links.
    pub const fn between(one: usize, other: usize) -> Self {
        Self { ranks: [one, other], ..Self::BLANK }
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

entry! {
    /// A slow worker.
    #[derive(Copy)]
    pub struct SlowWorker {
        /// Its rank.
        rank: usize = required, integer(0, MAX_WORKERS - 1);
        /// Mean slowdown of a micro-batch; at least 1.
        factor: f64 = required, float(Closed(1.0), Open(1e6));
        /// Distribution of the slowdown over micro-batches.
        distribution: Distribution = (shown Distribution::Constant);
    }
}

impl Emulate {
    /// No emulation.
    pub const fn none() -> Self {
        Self::BLANK
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
        let has_slow_host = self.data.0 > 0.0 || self.disk_bandwidth.0 > 0.0;
        (self.has_links() || has_slow_workers || has_slow_host).then(|| self.to_string())
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
        if self.data.0 > 0.0 {
            parts.push(format!("a batch is ready after {} ms", self.data.0 * 1e3));
        }
        if self.disk_bandwidth.0 > 0.0 {
            parts.push(format!("disk {} MB/s", self.disk_bandwidth.0 / 1e6));
        }
        for SlowWorker { rank, factor, distribution } in &self.slow {
            parts.push(format!("worker {rank} {factor} times slower ({distribution})"));
        }
        f.write_str(&parts.join("; "))
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    // Links connect two ranks of the run.
    Rule::new(&["emulate.links", "run.workers"], |c| {
        let workers = c.run.workers;
        let is_wrong =
            |ranks: [usize; 2]| ranks[0] == ranks[1] || ranks.iter().any(|rank| *rank >= workers);
        let is_broken = workers > 1 && c.emulate.links.iter().any(|link| is_wrong(link.ranks));
        let rule =
            format!("needs two different ranks below run.workers = {workers} for every link");
        c.refuse(is_broken, rule, "ranks = [0, 1]")
    }),
    // Slow workers exist.
    Rule::new(&["emulate.slow", "run.workers"], |c| {
        let workers = c.run.workers;
        let wrong = c.emulate.slow.iter().find(|slow| slow.rank >= workers)?;
        let rule = format!("slows rank {} where run.workers = {workers}", wrong.rank);
        c.refuse(true, rule, format!("rank = {}", workers - 1))
    }),
]);

/// Bandwidth of a 10 Gbit/s network in bytes per second.
const SLOW_LINK: f64 = 1.25e9;

pub(crate) const LINTS: &[Lint] = lints! {
    "slow-link": "links are too slow to hide communication behind computation";
        if "0 < emulate.bandwidth < 1.25 GB/s, with several workers";
        advice "expect exposed communication, or raise train.batch";
        |r| let BytesPerSecond(rate) = r.emulate.default_link.bandwidth;
            when r.run.workers > 1 && rate > 0.0 && rate < SLOW_LINK =>
                "emulate.bandwidth = {rate} is slower than a 10 Gbit/s network";
};

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
