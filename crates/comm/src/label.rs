//! Label of a call: the bucket, micro-batch or step it belongs to.
//!
//! The library does not know the purpose of a call. Callers attach a label with
//! [`Comm::about`](crate::Comm::about), and reports then say "bucket 3 of step 17" instead of call
//! 1,204 of a group. A label is stored beside the call record: it does not travel, and ranks may
//! use different ones.

use std::fmt;

/// Purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Label(u64);

const NAMES: [&str; 5] = ["", "step", "bucket", "microbatch", "stream"];
const KIND_BIT: u32 = 60;
const INDEX_BIT: u32 = 32;
const MAX_INDEX: u64 = (1 << (KIND_BIT - INDEX_BIT)) - 1;

impl Label {
    /// No label.
    pub const NONE: Self = Self(0);

    /// A whole step.
    pub fn step(step: u64) -> Self {
        Self::new(1, 0, step)
    }

    /// A bucket of gradients or parameters in a step.
    pub fn bucket(index: usize, step: u64) -> Self {
        Self::new(2, index, step)
    }

    /// A micro-batch of a step.
    pub fn microbatch(index: usize, step: u64) -> Self {
        Self::new(3, index, step)
    }

    /// One of several streams of work in a step.
    pub fn stream(index: usize, step: u64) -> Self {
        Self::new(4, index, step)
    }

    /// Clamps numbers that are too large.
    fn new(kind: u64, index: usize, step: u64) -> Self {
        let index = (index as u64).min(MAX_INDEX);
        Self(kind << KIND_BIT | index << INDEX_BIT | step.min(u64::from(u32::MAX)))
    }

    /// Whether there is no label.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The encoded label.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// Decodes a label; every value is valid.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = NAMES.get((self.0 >> KIND_BIT) as usize).unwrap_or(&"part");
        let (index, step) = (self.0 >> INDEX_BIT & MAX_INDEX, self.0 & u64::from(u32::MAX));
        match *kind {
            "" => Ok(()),
            "step" => write!(f, "step {step}"),
            kind => write!(f, "{kind} {index} of step {step}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_render_as_phrases() {
        assert_eq!(Label::bucket(3, 17).to_string(), "bucket 3 of step 17");
        assert_eq!(Label::step(4).to_string(), "step 4");
        assert_eq!(Label::stream(2, 0).to_string(), "stream 2 of step 0");
        assert_eq!(Label::NONE.to_string(), "");
        let huge = Label::microbatch(usize::MAX, u64::MAX);
        assert!(huge.to_string().starts_with("microbatch "), "{huge}");
        assert_eq!(Label::from_word(huge.to_word()), huge);
    }
}
