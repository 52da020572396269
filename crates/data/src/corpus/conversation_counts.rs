//! Numbers of the conversations that a run reads.

/// Conversations of a data set, or pairs of them, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConversationCounts {
    /// Conversations or pairs with an answer to learn, in both splits.
    pub num: u64,
    /// Those of them in the training split.
    pub num_train: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Tokens that the loss counts.
    pub targets: u64,
    /// Those of which something lies beyond the context.
    pub truncated: u64,
    /// Conversations or pairs that are not used: they have no answer within the context.
    pub dropped: u64,
    /// Whether they are pairs.
    pub has_pairs: bool,
}

impl ConversationCounts {
    /// Adds those of a separate validation file.
    pub(super) fn with_held_out(self, other: Self) -> Self {
        Self {
            num: self.num + other.num,
            num_train: self.num,
            tokens: self.tokens + other.tokens,
            targets: self.targets + other.targets,
            truncated: self.truncated + other.truncated,
            dropped: self.dropped + other.dropped,
            has_pairs: self.has_pairs,
        }
    }
}
