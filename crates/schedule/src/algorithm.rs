//! Names of the collective algorithms, as settings and tables write them.

use std::fmt;
use std::str::FromStr;

/// Algorithm of a collective. The module that builds its schedules explains each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Chunks travel around a ring; written `ring` or, with several channels, `ring:4`.
    Ring {
        /// Number of concurrent rings; odd ones run in the opposite direction.
        channels: usize,
    },
    /// One tree over the ranks.
    Tree,
    /// Two trees, each for half of the vector; written `double-tree` or `double-tree:8`.
    DoubleTree {
        /// Number of segments per half, which keep all levels of the trees busy.
        segments: usize,
    },
    /// Recursive doubling: partners at distance 1, 2, 4 … exchange the whole vector.
    Butterfly,
    /// Recursive halving and doubling: reduce-scatter by halving, then all-gather by doubling.
    Rabenseifner,
    /// Reduce-scatter by recursive halving.
    Halving,
    /// All-gather in which the data held doubles every round.
    Doubling,
    /// Every pair of ranks exchanges its parts directly.
    Pairwise,
    /// Every rank works on its part in the shared memory of all ranks.
    Direct,
    /// Every rank reads all inputs in shared memory and reduces them itself.
    OneShot,
    /// One level of the topology after the other.
    Hierarchical,
    /// The root exchanges with every rank directly.
    Linear,
    /// A long vector is scattered first and gathered afterwards.
    ScatterGather,
    /// Barrier messages to ranks at distance 1, 2, 4 …
    Dissemination,
}

impl Algorithm {
    /// Names of all algorithms, without their parameters.
    pub const NAMES: [&'static str; 14] = [
        "ring",
        "tree",
        "double-tree",
        "butterfly",
        "rabenseifner",
        "halving",
        "doubling",
        "pairwise",
        "direct",
        "one-shot",
        "hierarchical",
        "linear",
        "scatter-gather",
        "dissemination",
    ];

    /// Index in [`Self::NAMES`].
    pub const fn index(self) -> usize {
        match self {
            Self::Ring { .. } => 0,
            Self::Tree => 1,
            Self::DoubleTree { .. } => 2,
            Self::Butterfly => 3,
            Self::Rabenseifner => 4,
            Self::Halving => 5,
            Self::Doubling => 6,
            Self::Pairwise => 7,
            Self::Direct => 8,
            Self::OneShot => 9,
            Self::Hierarchical => 10,
            Self::Linear => 11,
            Self::ScatterGather => 12,
            Self::Dissemination => 13,
        }
    }
}

/// Algorithms without a parameter.
const PLAIN: [Algorithm; 12] = [
    Algorithm::Tree,
    Algorithm::Butterfly,
    Algorithm::Rabenseifner,
    Algorithm::Halving,
    Algorithm::Doubling,
    Algorithm::Pairwise,
    Algorithm::Direct,
    Algorithm::OneShot,
    Algorithm::Hierarchical,
    Algorithm::Linear,
    Algorithm::ScatterGather,
    Algorithm::Dissemination,
];

impl Algorithm {
    /// One ring in one direction.
    pub const RING: Self = Self::Ring { channels: 1 };

    /// Name without the parameter.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Self::Ring { channels: number } | Self::DoubleTree { segments: number }
                if number != 1 =>
            {
                write!(f, ":{number}")
            }
            _ => Ok(()),
        }
    }
}

/// Unknown algorithm name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no algorithm; try ring, ring:2, double-tree, double-tree:8, {}",
    plain_names()
)]
pub struct UnknownAlgorithm {
    /// Text that was given.
    pub text: String,
}

fn plain_names() -> String {
    PLAIN.map(Algorithm::name).join(", ")
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let unknown = || UnknownAlgorithm { text: text.to_owned() };
        if let Some(algorithm) = PLAIN.into_iter().find(|algorithm| algorithm.name() == text) {
            return Ok(algorithm);
        }
        let (name, number) = text.split_once(':').unwrap_or((text, "1"));
        let number: usize = number.parse().map_err(|_| unknown())?;
        match name {
            "ring" if number > 0 => Ok(Self::Ring { channels: number }),
            "double-tree" if number > 0 => Ok(Self::DoubleTree { segments: number }),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let numbered = [
            Algorithm::RING,
            Algorithm::Ring { channels: 4 },
            Algorithm::DoubleTree { segments: 8 },
        ];
        for algorithm in PLAIN.into_iter().chain(numbered) {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn a_wrong_name_lists_the_right_ones() {
        for text in ["rings", "ring:0", "ring:x", "tree:2", ""] {
            let error = text.parse::<Algorithm>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no algorithm; try ring")), "{error}");
            assert!(error.contains("rabenseifner"), "{error}");
        }
    }
}
