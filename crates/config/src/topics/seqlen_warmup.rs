//! Sequence-length warm-up (Li et al. 2022, "The Stability-Efficiency Dilemma"): a run begins on
//! short sequences, whose length grows linearly to that of the model.
//!
//! Sequences are cut into segments of the current length that do not attend to each other, and no
//! token is left out (`seqlen_reshape` in DeepSpeed's curriculum; the paper keeps the first segment
//! of each). So the tokens of a step, its memory and its messages are those of every other step.

use super::{DataFormat, Recipe};
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::MAX_STEPS;

topic! {
    /// Sequence-length warm-up.
    #[derive(Copy)]
    pub struct SeqlenWarmup at train.seqlen, among "train" {
        /// Sequence-length warm-up (Li et al. 2022): number of steps over which sequences grow from
        /// train.seqlen_start to model.context; 0 begins with whole ones. Shorter ones are segments
        /// of the sequences, which do not attend to each other; every token is trained on.
        warmup_steps as seqlen_warmup_steps: u64 = 0, integer(0, MAX_STEPS),
            when("model.family", super::Family::OF_TEXT), in_identity_unless_default();

        /// Length of the segments in the first step.
        start as seqlen_start: usize = 8, integer(1, 1 << 20),
            when("model.family", super::Family::OF_TEXT), in_identity_when(is_on);

        /// Unit of the length: a length is rounded down to a multiple of it.
        unit as seqlen_step: usize = 8, integer(1, 1 << 20),
            when("model.family", super::Family::OF_TEXT), in_identity_when(is_on);
    }
}

impl SeqlenWarmup {
    /// Length of the segments in a step, the first of which is 0, of sequences of `context` tokens.
    ///
    /// ```
    /// use lockstep_config::SeqlenWarmup;
    ///
    /// let warmup = SeqlenWarmup { warmup_steps: 4, start: 8, unit: 8 };
    /// let lengths: Vec<usize> = (0..6).map(|step| warmup.length_at(step, 48)).collect();
    /// assert_eq!(lengths, [8, 16, 24, 32, 48, 48], "8, 18, 28, 38, then whole sequences");
    /// ```
    pub fn length_at(&self, step: u64, context: usize) -> usize {
        if step >= self.warmup_steps {
            return context;
        }
        let growth = context.saturating_sub(self.start) as u128 * u128::from(step);
        let length = self.start + (growth / u128::from(self.warmup_steps)) as usize;
        (length / self.unit * self.unit).max(self.start).min(context)
    }

    /// Whether any step has segments.
    pub const fn is_on(&self) -> bool {
        self.warmup_steps > 0
    }
}

impl Recipe {
    /// Length of the segments of a step, where sequences are cut into segments.
    pub fn seqlen_at(&self, step: u64) -> Option<usize> {
        let length = self.train.seqlen.length_at(step, self.model.context);
        Some(length).filter(|length| *length < self.model.context)
    }
}

/// Whether the recipe has a warm-up.
fn is_on(recipe: &Recipe) -> bool {
    recipe.train.seqlen.is_on()
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["train.seqlen_warmup_steps", "train.steps"], |c| {
        let steps = c.train.steps;
        let rule = format!("is more than train.steps = {steps}");
        c.refuse(c.train.seqlen.warmup_steps > steps, rule, (steps / 4).max(1))
    }),
    Rule::new(&["train.seqlen_start", "model.context"], |c| {
        let context = c.model.context;
        let rule = format!("is more than model.context = {context}");
        c.refuse(is_on(c) && c.train.seqlen.start > context, rule, context)
    }),
    Rule::new(&["train.seqlen_warmup_steps", "data.format"], |c| {
        let is_chat = c.data.format == DataFormat::Chat;
        let rule = "would cut conversations, whose answers follow from what is before them";
        c.refuse(is_on(c) && is_chat, rule, 0)
    }),
])
.when(&[], |r| r.model.family.is_text());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_never_shrink_and_are_multiples_from_the_start_to_the_context() {
        for (warmup_steps, start, unit, context) in
            [(10, 8, 8, 128), (7, 5, 8, 50), (1, 1, 1, 2), (1000, 64, 16, 100), (3, 9, 4, 9)]
        {
            let warmup = SeqlenWarmup { warmup_steps, start, unit };
            let lengths = (0..=warmup_steps).map(|step| warmup.length_at(step, context));
            let lengths: Vec<usize> = lengths.collect();
            assert!(lengths.is_sorted(), "{lengths:?}");
            assert_eq!((lengths[0], lengths.last()), (start, Some(&context)));
            let fits = |len: &usize| *len == start || *len == context || len.is_multiple_of(unit);
            assert!(lengths.iter().all(fits), "{lengths:?}");
        }
    }

    #[test]
    fn without_a_warm_up_sequences_are_whole() {
        assert_eq!(Recipe::default().seqlen_at(0), None);
    }
}
