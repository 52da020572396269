//! Algorithms of collectives: which calls do not use the cheapest one.

use crate::error::ConfigError;
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, entry};
use crate::units::Bytes;

/// Largest number of entries.
pub(super) const MAX_ENTRIES: usize = 64;

/// Largest number of concurrent rings.
const MAX_CHANNELS: i64 = 16;

choices! {
    /// Collective operation.
    CollectiveOp {
        /// Every rank gets the sum of all vectors.
        AllReduce = "all-reduce",
        /// Every rank gets its part of the sum.
        ReduceScatter = "reduce-scatter",
        /// Every rank gets the parts of all.
        AllGather = "all-gather",
        /// Every rank gets the vector of one.
        Broadcast = "broadcast",
        /// One rank gets the sum.
        Reduce = "reduce",
        /// Every rank gets its part of every other rank's vector.
        AllToAll = "all-to-all",
    }

    /// Algorithm of a collective.
    CollectiveAlgorithm {
        /// Chunks travel around a ring.
        Ring = "ring",
        /// One tree over the ranks.
        Tree = "tree",
        /// Two trees, each for half of the vector (Sanders et al. 2009).
        DoubleTree = "double-tree",
        /// Recursive doubling with the whole vector.
        Butterfly = "butterfly",
        /// Recursive halving and doubling (Rabenseifner 2004).
        Rabenseifner = "rabenseifner",
        /// Reduce-scatter by recursive halving.
        Halving = "halving",
        /// All-gather by recursive doubling.
        Doubling = "doubling",
        /// Every pair of ranks exchanges its parts.
        Pairwise = "pairwise",
        /// Every rank works on its part in shared memory.
        Direct = "direct",
        /// Every rank reads all inputs in shared memory.
        OneShot = "one-shot",
        /// One level of the topology after the other.
        Hierarchical = "hierarchical",
        /// The root exchanges with every rank.
        Linear = "linear",
        /// A long vector is scattered and then gathered.
        ScatterGather = "scatter-gather",
    }
}

entry! {
    /// Algorithm of the calls of one operation and range of sizes.
    #[derive(Copy)]
    pub struct CollectiveRule {
        /// Operation.
        op: CollectiveOp = required;
        /// Algorithm.
        algorithm: CollectiveAlgorithm = required;
        /// Number of concurrent rings; odd ones run in the opposite direction.
        channels: usize = (1_usize), integer(1, MAX_CHANNELS);
        /// Smallest vector, in bytes or as text such as "1MiB".
        min_bytes: Bytes = (Bytes(0));
        /// Largest vector; none without a limit.
        max_bytes: Option<Bytes> = none;
    }
}

impl CollectiveRule {
    /// Whether it applies to a call on this many bytes.
    pub fn applies_to(&self, op: CollectiveOp, bytes: Bytes) -> bool {
        let is_in_range = bytes >= self.min_bytes && self.max_bytes.is_none_or(|max| bytes <= max);
        self.op == op && is_in_range
    }
}

pub(crate) const RULES: Rules =
    Rules::new(&[Rule::each(&["parallel.collectives"], entries_are_consistent)]);

/// Only a ring has channels, and every entry has sizes.
fn entries_are_consistent(c: &RuleContext<'_>) -> Vec<ConfigError> {
    let entries = c.parallel.collectives.iter().enumerate();
    let check = |(index, entry): (usize, &CollectiveRule)| {
        let CollectiveRule { algorithm, channels, min_bytes, max_bytes, .. } = *entry;
        let cell = |name: &str| format!("[{index}].{name}");
        if channels > 1 && algorithm != CollectiveAlgorithm::Ring {
            let rule = format!("is not supported with algorithm = \"{algorithm}\"");
            let fix = "try 1, or algorithm = \"ring\"".to_owned();
            return Some(c.entry_error(&cell("channels"), channels.to_string(), rule, fix));
        }
        let max = max_bytes.filter(|max| *max < min_bytes)?;
        let rule = format!("is less than min_bytes = {}", min_bytes.0);
        let fix = format!("try {}", min_bytes.0);
        Some(c.entry_error(&cell("max_bytes"), max.0.to_string(), rule, fix))
    };
    entries.filter_map(check).collect()
}
