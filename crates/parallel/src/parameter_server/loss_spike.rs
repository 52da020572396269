//! Loss spikes of a worker, at which all workers switch to synchronous steps.

use std::collections::VecDeque;

/// Number of recent losses that a loss is compared with.
const NUM_LOSSES: usize = 20;

/// Most recent losses of a worker.
#[derive(Debug, Default)]
pub(super) struct LossSpike {
    /// Ratio to their mean at which a loss is a spike; 0 finds none.
    factor: f64,
    last: VecDeque<f64>,
}

impl LossSpike {
    pub(super) fn new(factor: f64) -> Self {
        Self { factor, last: VecDeque::with_capacity(NUM_LOSSES) }
    }

    /// Records a loss and returns whether it is a spike.
    pub(super) fn observe(&mut self, loss: f64) -> bool {
        let (count, times) = (self.last.len(), self.factor);
        let mean = self.last.iter().fold(0.0, |sum, loss| sum + loss) / count.max(1) as f64;
        let is_spike = times > 0.0 && count == NUM_LOSSES && (loss.is_nan() || loss > times * mean);
        if count == NUM_LOSSES {
            self.last.pop_front();
        }
        self.last.push_back(loss);
        is_spike
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_detected_once_enough_losses_are_known() {
        let mut spike = LossSpike::new(2.0);
        assert!((0..NUM_LOSSES).all(|_| !spike.observe(100.0)), "too few losses");
        assert!(!spike.observe(200.0));
        spike.factor = 0.0;
        assert!(!spike.observe(201.0), "spike detection is off");
        spike.factor = 2.0;
        assert!(spike.observe(300.0));
        assert!(spike.observe(f64::NAN));
    }
}
