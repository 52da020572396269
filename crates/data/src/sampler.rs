//! Samples of a token stream: window `n` is a function of (seed, epoch, index) alone.
//!
//! A sample is a window of up to `context + 1` tokens: the inputs are all but the last, the targets
//! all but the first. *Packed* windows are `context` tokens apart, so an epoch predicts every
//! target once. Each random epoch shifts all windows by its own offset, so that over the epochs a
//! token appears at every position, and visits them in its own keyed order ([`Permutation`]).
//! *Padded* documents are cut into windows one by one, and the last one of each may be short.
//!
//! Batches are ranges of consecutive sample numbers, so neither the number of workers nor the
//! micro-batch size changes the samples of a step.

use std::ops::Range;
use std::sync::Arc;

use lockstep_config::{EpochEnd, Order};

use crate::permutation::{Permutation, mix};

/// Locates any sample in constant time (packed) or by bisection (padded).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
    context: usize,
    cut: Cut,
    num_windows: u64,
    /// Windows that stay together.
    group: u64,
    order: Order,
    last: EpochEnd,
    /// Number of samples per step, by first step.
    stages_taken: Vec<Stage>,
}

/// Steps with an equal number of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stage {
    first_step: u64,
    per_step: u64,
    /// Position of the first step.
    epoch: u64,
    place: u64,
}

/// Location of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Epoch of the sample.
    pub epoch: u64,
    /// Index of the window in the stream, in reading order.
    pub index: u64,
    /// Position of its first token.
    pub start: usize,
    /// Number of targets: one less than its tokens.
    pub num_targets: usize,
}

/// Method of cutting a stream into windows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cut {
    Packed { first: usize, num_offsets: u64 },
    Padded { documents: Arc<[Document]> },
}

/// A document with at least one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Document {
    start: usize,
    end: usize,
    /// Number of windows in the documents before it.
    first_window: u64,
}

/// Purpose keys of the random numbers, so that the two uses are uncorrelated.
const OFFSET: u64 = 1;
const ORDER: u64 = 2;

impl Sampler {
    /// Random sampler over a packed stream of `num_tokens`, which must hold a window; batches may
    /// span epochs.
    pub fn new(seed: u64, context: usize, num_tokens: usize) -> Self {
        Self::packed(seed, context, 0..num_tokens, Order::Random)
    }

    /// Sampler over a span of a packed stream.
    pub fn packed(seed: u64, context: usize, tokens: Range<usize>, order: Order) -> Self {
        let num_tokens = tokens.len();
        assert!(context > 0, "a window predicts at least one token");
        assert!(num_tokens > context, "{num_tokens} tokens hold no window of {context} + 1");
        let (num_windows, num_offsets) = match order {
            // The number of windows must not depend on the epoch's offset, so that a division gives
            // a sample's epoch. One window of tokens is reserved for the offsets; a stream too
            // short for that has one window and as many offsets as fit.
            Order::Random => {
                let num_windows = ((num_tokens - context) / context).max(1);
                (num_windows, context.min(num_tokens - num_windows * context))
            }
            Order::Sequential => ((num_tokens - 1) / context, 1),
        };
        let cut = Cut::Packed { first: tokens.start, num_offsets: num_offsets as u64 };
        Self::over(seed, context, cut, num_windows as u64, order)
    }

    /// Sampler over padded documents with these ends. Documents are clipped to `tokens`; at least
    /// one must have two tokens.
    pub fn padded(
        seed: u64,
        context: usize,
        tokens: Range<usize>,
        ends: &[u64],
        order: Order,
    ) -> Self {
        assert!(context > 0, "a window predicts at least one token");
        let (documents, num_windows) = documents_in(context, tokens, ends);
        assert!(num_windows > 0, "no document has two tokens");
        let cut = Cut::Padded { documents: documents.into() };
        Self::over(seed, context, cut, num_windows, order)
    }

    fn over(seed: u64, context: usize, cut: Cut, num_windows: u64, order: Order) -> Self {
        Self {
            seed,
            context,
            cut,
            num_windows,
            group: 1,
            order,
            last: EpochEnd::Wrap,
            stages_taken: Vec::new(),
        }
        .in_steps(1, EpochEnd::Wrap)
    }

    /// Keeps windows of this many together, whatever their order.
    pub(crate) fn in_groups(self, group: u64) -> Self {
        assert!(self.num_windows.is_multiple_of(group), "windows of whole groups");
        Self { group, ..self }
    }

    /// Sets the number of samples per step and the policy at the end of an epoch. `Drop` needs an
    /// epoch of at least one step.
    pub fn in_steps(self, per_step: usize, last: EpochEnd) -> Self {
        self.in_stages([(0, per_step)], last)
    }

    /// Sets the number of samples per step in stages of (first step, number); the first stage
    /// starts at step 0.
    pub fn in_stages(
        mut self,
        stages: impl IntoIterator<Item = (u64, usize)>,
        last: EpochEnd,
    ) -> Self {
        (self.last, self.stages_taken) = (last, Vec::new());
        for (first_step, per_step) in stages {
            let per_step = per_step as u64;
            assert!(per_step > 0, "a step takes samples");
            assert!(last != EpochEnd::Drop || self.num_windows >= per_step, "a step an epoch");
            let (epoch, place) = match self.stages_taken.last() {
                Some(stage) => self.begin(stage, first_step),
                None => (0, 0),
            };
            self.stages_taken.push(Stage { first_step, per_step, epoch, place });
        }
        self
    }

    /// Epoch and position in it at which a step begins.
    fn begin(&self, stage: &Stage, step: u64) -> (u64, u64) {
        let Stage { first_step, per_step, epoch, place } = *stage;
        let num_steps = step - first_step;
        let steps_in = |num_windows: u64| match self.last {
            EpochEnd::Drop => num_windows / per_step,
            EpochEnd::Wrap | EpochEnd::Pad => num_windows.div_ceil(per_step),
        };
        if self.last == EpochEnd::Wrap {
            let place = place + num_steps * per_step;
            return (epoch + place / self.num_windows, place % self.num_windows);
        }
        let rest = steps_in(self.num_windows - place);
        match num_steps.checked_sub(rest) {
            None => (epoch, place + num_steps * per_step),
            Some(later) => {
                let whole = steps_in(self.num_windows);
                (epoch + 1 + later / whole, later % whole * per_step)
            }
        }
    }

    /// First step at which this many epochs are over.
    pub(crate) fn steps_of_epochs(&self, epochs: f64) -> u64 {
        let needed = samples_of_epochs(epochs, self.num_windows);
        let is_over = |step: u64| {
            let (epoch, place) = self.begin(self.stage(step), step);
            epoch * self.num_windows + place >= needed
        };
        first_true(is_over)
    }

    /// Stage of a step.
    fn stage(&self, step: u64) -> &Stage {
        let behind = self.stages_taken.partition_point(|stage| stage.first_step <= step);
        &self.stages_taken[behind - 1]
    }

    /// Number of samples per epoch.
    pub fn num_windows(&self) -> u64 {
        self.num_windows
    }

    /// Window of a sample number, without regard to steps.
    pub fn locate(&self, sample: u64) -> Window {
        self.window(sample / self.num_windows, sample % self.num_windows)
    }

    /// Sample `slot` of a step; none for padding at the end of an epoch.
    pub fn draw(&self, step: u64, slot: usize) -> Option<Window> {
        let stage = self.stage(step);
        assert!((slot as u64) < stage.per_step, "sample {slot} of {} in a step", stage.per_step);
        let (epoch, first) = self.begin(stage, step);
        let place = first + slot as u64;
        match self.last {
            EpochEnd::Wrap => {
                Some(self.window(epoch + place / self.num_windows, place % self.num_windows))
            }
            EpochEnd::Drop | EpochEnd::Pad => {
                (place < self.num_windows).then(|| self.window(epoch, place))
            }
        }
    }

    /// Window at a position of an epoch.
    fn window(&self, epoch: u64, place: u64) -> Window {
        let key = |purpose| mix(mix(self.seed, purpose), epoch);
        let index = match self.order {
            Order::Random => {
                let permutation = Permutation::new(self.num_windows / self.group, key(ORDER));
                permutation.apply(place / self.group) * self.group + place % self.group
            }
            Order::Sequential => place,
        };
        match &self.cut {
            Cut::Packed { first, num_offsets } => {
                let offset = match self.order {
                    Order::Random => scale(key(OFFSET), *num_offsets) as usize,
                    Order::Sequential => 0,
                };
                let start = first + offset + index as usize * self.context;
                Window { epoch, index, start, num_targets: self.context }
            }
            Cut::Padded { documents } => {
                let above = documents.partition_point(|document| document.first_window <= index);
                let Document { start, end, first_window } = documents[above - 1];
                let start = start + (index - first_window) as usize * self.context;
                let num_targets = self.context.min(end - 1 - start);
                Window { epoch, index, start, num_targets }
            }
        }
    }
}

/// Number of samples of this many epochs, a part of one counting as a whole.
pub(crate) fn samples_of_epochs(epochs: f64, per_epoch: u64) -> u64 {
    let samples = epochs * per_epoch as f64;
    // The product of a fraction may be just above a whole number.
    let is_rounded = (samples - samples.round()).abs() <= 4.0 * f64::EPSILON * samples;
    let samples = if is_rounded { samples.round() } else { samples.ceil() };
    (samples as u64).max(1)
}

/// The smallest number from 1 with a property that all numbers above it have too.
pub(crate) fn first_true(has: impl Fn(u64) -> bool) -> u64 {
    let mut high = 1;
    while !has(high) {
        high *= 2;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if has(middle) { high = middle } else { low = middle }
    }
    high
}

/// Documents of a span with targets, and their total number of windows.
fn documents_in(context: usize, tokens: Range<usize>, ends: &[u64]) -> (Vec<Document>, u64) {
    let mut documents = Vec::new();
    let mut first_window = 0;
    let mut start = 0;
    for &end in ends {
        let whole = start..end as usize;
        start = whole.end;
        let (start, end) = (whole.start.max(tokens.start), whole.end.min(tokens.end));
        if end >= start + 2 {
            documents.push(Document { start, end, first_window });
            first_window += (end - 1 - start).div_ceil(context) as u64;
        }
    }
    (documents, first_window)
}

/// Number of windows of padded documents in a span.
pub(crate) fn num_padded_windows(context: usize, tokens: Range<usize>, ends: &[u64]) -> u64 {
    documents_in(context, tokens, ends).1
}

/// Uniform number below `limit` from a random word: the high half of their product.
fn scale(word: u64, limit: u64) -> u64 {
    ((u128::from(word) * u128::from(limit)) >> u64::BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_lies_inside_the_stream_even_when_it_barely_fits() {
        for order in [Order::Random, Order::Sequential] {
            for context in 1..=9 {
                for num_tokens in context + 1..=5 * context + 2 {
                    let sampler = Sampler::packed(3, context, 7..7 + num_tokens, order);
                    for sample in 0..20 * sampler.num_windows() {
                        let start = sampler.locate(sample).start;
                        assert!(start >= 7 && start + context < 7 + num_tokens, "{num_tokens}");
                    }
                }
            }
        }
    }

    #[test]
    fn at_most_two_windows_of_the_stream_are_left_out_of_an_epoch() {
        for num_tokens in [5, 8, 9, 100, 101, 102, 103, 1000] {
            let used = Sampler::new(1, 4, num_tokens).num_windows() as usize * 4 + 1;
            assert!(num_tokens - used < 2 * 4, "{used} of {num_tokens}");
            let used =
                Sampler::packed(1, 4, 0..num_tokens, Order::Sequential).num_windows() as usize;
            assert!(num_tokens - (used * 4 + 1) < 4, "{used} windows of {num_tokens}");
        }
    }

    #[test]
    fn epochs_differ_in_order_and_offset() {
        let sampler = Sampler::new(1, 64, 100_000);
        let num_windows = sampler.num_windows();
        let epoch = |e| (0..num_windows).map(move |i| i + e * num_windows);
        let order = |e| epoch(e).map(|n| sampler.locate(n).index).collect::<Vec<_>>();
        assert_ne!(order(0), order(1));
        let offset = |e| sampler.locate(e * num_windows).start % 64;
        let mut offsets: Vec<usize> = (0..200).map(offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() > 48, "200 epochs use only {} of 64 offsets", offsets.len());
    }

    #[test]
    fn reading_order_is_the_same_in_every_epoch() {
        let sampler = Sampler::packed(1, 4, 0..22, Order::Sequential);
        let starts: Vec<_> = (0..10).map(|sample| sampler.locate(sample).start).collect();
        assert_eq!(starts, [0, 4, 8, 12, 16, 0, 4, 8, 12, 16]);
    }

    #[test]
    fn documents_begin_windows_and_every_target_is_predicted_once() {
        // Documents of 1, 6, 2, 0 and 9 tokens; the first and the empty one predict nothing.
        let ends = [1, 7, 9, 9, 18];
        let sampler = Sampler::padded(1, 4, 0..18, &ends, Order::Sequential);
        let windows: Vec<_> = (0..sampler.num_windows()).map(|n| sampler.locate(n)).collect();
        let found: Vec<_> = windows.iter().map(|w| (w.start, w.num_targets)).collect();
        assert_eq!(found, [(1, 4), (5, 1), (7, 1), (9, 4), (13, 4)]);

        let random = Sampler::padded(1, 4, 0..18, &ends, Order::Random);
        for epoch in 0..3 {
            let mut shuffled: Vec<_> = (0..5).map(|n| random.locate(5 * epoch + n)).collect();
            shuffled.sort_by_key(|window| window.index);
            let shuffled: Vec<_> = shuffled.iter().map(|w| (w.start, w.num_targets)).collect();
            assert_eq!(shuffled, found, "epoch {epoch}");
        }
    }

    #[test]
    fn documents_are_clipped_to_the_span() {
        let sampler = Sampler::padded(1, 4, 3..16, &[10, 20], Order::Sequential);
        let found: Vec<_> = (0..sampler.num_windows())
            .map(|n| sampler.locate(n))
            .map(|window| (window.start, window.num_targets))
            .collect();
        assert_eq!(found, [(3, 4), (7, 2), (10, 4), (14, 1)]);
    }

    #[test]
    fn the_end_of_an_epoch_is_wrapped_dropped_or_filled_up() {
        // Five windows, two a step.
        let sampler = |last| Sampler::packed(1, 4, 0..22, Order::Sequential).in_steps(2, last);
        let epochs_and_indices = |last| {
            let sampler = sampler(last);
            let draw = |step: u64| [0, 1].map(|slot| sampler.draw(step, slot));
            let places = (0..4).flat_map(draw).map(|w| w.map(|w| (w.epoch, w.index)));
            places.collect::<Vec<_>>()
        };
        let some = |list: &[(u64, u64)]| list.iter().map(|&at| Some(at)).collect::<Vec<_>>();
        assert_eq!(
            epochs_and_indices(EpochEnd::Wrap),
            some(&[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)])
        );
        assert_eq!(
            epochs_and_indices(EpochEnd::Drop),
            some(&[(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)])
        );
        let mut padded = some(&[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 9), (1, 0), (1, 1)]);
        padded[5] = None;
        assert_eq!(epochs_and_indices(EpochEnd::Pad), padded);
    }

    #[test]
    fn epochs_end_at_the_step_after_which_no_window_of_theirs_is_left() {
        let stages = [(0, 4), (3, 6), (5, 1), (9, 11)];
        for last in [EpochEnd::Wrap, EpochEnd::Drop, EpochEnd::Pad] {
            for sampler in [
                Sampler::new(7, 5, 75).in_stages(stages, last),
                Sampler::new(7, 5, 75).in_steps(3, last),
                Sampler::new(7, 5, 75).in_steps(14, last),
            ] {
                let slots = |step| 0..sampler.stage(step).per_step as usize;
                let epoch_of = |step, slot| sampler.draw(step, slot).map(|window| window.epoch);
                for epochs in 1..6_u64 {
                    let steps = sampler.steps_of_epochs(epochs as f64);
                    let is_own =
                        |step, slot| epoch_of(step, slot).is_some_and(|epoch| epoch < epochs);
                    let has_own = |step| slots(step).any(|slot| is_own(step, slot));
                    assert!(has_own(steps - 1), "{last:?}: {epochs} epochs, {steps} steps");
                    assert!(!has_own(steps), "{last:?}: {epochs} epochs, {steps} steps");
                }
            }
        }
        // Fourteen windows, two a step.
        let sampler = Sampler::new(7, 5, 75).in_steps(2, EpochEnd::Wrap);
        let steps = [0.01, 0.5, 1.0, 1.1, 10.0].map(|epochs| sampler.steps_of_epochs(epochs));
        assert_eq!(steps, [1, 4, 7, 8, 70]);
        // 0.1 * 30 is above 3 in floating point.
        assert_eq!(samples_of_epochs(0.1, 30), 3);
        assert_eq!(samples_of_epochs(1e6, 1 << 40), 1_000_000 << 40);
    }

    #[test]
    fn stages_continue_where_the_steps_before_them_ended() {
        let stages = [(0, 4), (3, 6), (5, 1), (9, 11), (12, 4)];
        let per_step = |step| stages.iter().rev().find(|(first, _)| *first <= step).unwrap().1;
        for last in [EpochEnd::Wrap, EpochEnd::Drop, EpochEnd::Pad] {
            let sampler = Sampler::new(7, 5, 75).in_stages(stages, last);
            assert_eq!(sampler.num_windows(), 14);
            // Walk the epoch window by window.
            let (mut epoch, mut place) = (0, 0);
            for step in 0..40 {
                let num = per_step(step);
                if last == EpochEnd::Drop && place + num as u64 > 14 {
                    (epoch, place) = (epoch + 1, 0);
                }
                for slot in 0..num {
                    if last == EpochEnd::Wrap && place == 14 {
                        (epoch, place) = (epoch + 1, 0);
                    }
                    let expected = (place < 14).then(|| sampler.window(epoch, place));
                    assert_eq!(sampler.draw(step, slot), expected, "{last:?} {step} {slot}");
                    place += 1;
                }
                let is_over = match last {
                    EpochEnd::Wrap => false,
                    EpochEnd::Drop => place + num as u64 > 14,
                    EpochEnd::Pad => place >= 14,
                };
                if is_over {
                    (epoch, place) = (epoch + 1, 0);
                }
            }
        }
    }
}
