//! Static and dynamic loss scaling for `fp16` (Micikevicius et al. 2018, "Mixed Precision
//! Training").
//!
//! Gradients of a transformer are small, and `fp16` rounds values below 2^-25 to zero. The loss is
//! therefore multiplied by a power of two, which scales all gradients; they are divided by it
//! before the norm. Gradients that are not finite mean that the scale is too large: a dynamic scale
//! is then halved and the step skipped. After `loss_scale_interval` steps without an overflow it is
//! doubled. Every rank computes the same norm, so all ranks agree on the scale.
//!
//! With scale S, a gradient g overflows beyond `g S = 65,504` and underflows below `g S = 2^-25`: a
//! larger S trades underflows for overflows.

use lockstep_config::{Dtype, LossScale, Precision};

/// Steps over which the overflow rate is measured.
const WINDOW: u64 = 100;
/// Largest overflow rate without a warning.
const MAX_OVERFLOW_RATE: f64 = 0.01;

/// Loss scale of every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossScaler {
    /// None without loss scaling.
    scale: Option<LossScale>,
    /// Steps without an overflow after which the scale doubles; none for a static scale.
    interval: Option<u64>,
    /// Steps since the scale changed or something overflowed.
    clean_steps: u64,
}

impl LossScaler {
    /// Starts with the first scale of a run.
    pub fn new(precision: &Precision) -> Self {
        Self {
            scale: (precision.compute == Dtype::F16).then(|| precision.first_scale()),
            interval: precision.is_dynamic().then_some(precision.loss_scale_interval),
            clean_steps: 0,
        }
    }

    /// Resumes with the scale of a checkpoint and the steps since it changed.
    pub fn resume(precision: &Precision, scale: LossScale, clean_steps: u64) -> Self {
        let start = Self::new(precision);
        Self { scale: start.scale.map(|_| scale), clean_steps, ..start }
    }

    /// Scale of the next step; none without loss scaling.
    pub fn scale(&self) -> Option<LossScale> {
        self.scale
    }

    /// Steps since the scale changed or something overflowed.
    pub fn clean_steps(&self) -> u64 {
        self.clean_steps
    }

    /// Counts a step without an overflow.
    pub fn record_clean_step(&mut self) {
        self.clean_steps += 1;
        if self.interval.is_some_and(|interval| self.clean_steps >= interval) {
            self.scale = self.scale.map(LossScale::doubled);
            self.clean_steps = 0;
        }
    }

    /// Counts a step whose gradient was not finite. Returns whether a smaller scale may help, which
    /// the next step then uses.
    pub fn record_overflow(&mut self) -> bool {
        self.clean_steps = 0;
        let smaller = self.scale.filter(|_| self.interval.is_some()).and_then(LossScale::halved);
        if smaller.is_some() {
            self.scale = smaller;
        }
        smaller.is_some()
    }
}

/// Warns when steps overflow too often. The overflows with which a dynamic scale starts do not
/// count: the first clean step begins the count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowMonitor {
    has_begun: bool,
    num_steps: u64,
    num_overflows: u64,
}

impl OverflowMonitor {
    /// Records a step; returns the overflow rate of the last hundred steps where it is too high.
    pub fn record(&mut self, has_overflowed: bool) -> Option<f64> {
        self.has_begun |= !has_overflowed;
        if !self.has_begun {
            return None;
        }
        self.num_steps += 1;
        self.num_overflows += u64::from(has_overflowed);
        if self.num_steps < WINDOW {
            return None;
        }
        let rate = self.num_overflows as f64 / self.num_steps as f64;
        *self = Self { has_begun: true, ..Self::default() };
        (rate > MAX_OVERFLOW_RATE).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Recipe, Sources, resolve};

    fn precision(sets: &[&str]) -> Precision {
        let sets = ["precision.compute=fp16"].iter().chain(sets);
        let sets = sets.map(|set| (*set).to_owned()).collect();
        resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe").precision
    }

    fn exponent(scaler: &LossScaler) -> u8 {
        scaler.scale().expect("fp16 is scaled").exponent()
    }

    #[test]
    fn a_dynamic_scale_halves_at_once_and_doubles_after_the_interval() {
        let mut scaler = LossScaler::new(&precision(&["precision.loss_scale_interval=3"]));
        assert_eq!(exponent(&scaler), 16);
        assert!(scaler.record_overflow() && scaler.record_overflow());
        assert_eq!(exponent(&scaler), 14);
        scaler.record_clean_step();
        scaler.record_clean_step();
        assert!(scaler.record_overflow(), "the count begins again");
        let exponents: Vec<u8> = (0..7)
            .map(|_| {
                scaler.record_clean_step();
                exponent(&scaler)
            })
            .collect();
        assert_eq!(exponents, [13, 13, 14, 14, 14, 15, 15]);
    }

    #[test]
    fn a_scale_of_one_or_a_static_one_does_not_help() {
        for sets in [&["precision.loss_scale=1024"][..], &["precision.loss_scale_start=1"]] {
            let mut scaler = LossScaler::new(&precision(sets));
            let before = scaler.scale();
            assert!(!scaler.record_overflow());
            assert_eq!(scaler.scale(), before);
        }
        let mut fixed = LossScaler::new(&precision(&["precision.loss_scale=1024"]));
        (0..5000).for_each(|_| fixed.record_clean_step());
        assert_eq!(exponent(&fixed), 10);
    }

    #[test]
    fn f32_has_no_scale_and_a_resumed_scaler_equals_the_saved_one() {
        assert_eq!(LossScaler::new(&Recipe::default().precision).scale(), None);
        let precision = precision(&["precision.loss_scale_interval=5"]);
        let mut scaler = LossScaler::new(&precision);
        scaler.record_overflow();
        (0..3).for_each(|_| scaler.record_clean_step());
        let scale = scaler.scale().expect("a scale");
        assert_eq!(LossScaler::resume(&precision, scale, scaler.clean_steps()), scaler);
    }

    #[test]
    fn more_than_one_overflow_in_a_hundred_steps_is_too_many() {
        let mut monitor = OverflowMonitor::default();
        for _ in 0..30 {
            assert_eq!(monitor.record(true), None, "a scale that finds its place");
        }
        let mut rates = |num_overflows: u64| {
            let rates: Vec<_> =
                (0..100).map(|i| monitor.record(i >= 100 - num_overflows)).collect();
            assert!(rates[..99].iter().all(Option::is_none));
            rates[99]
        };
        assert_eq!(rates(1), None);
        assert_eq!(rates(2), Some(0.02));
        assert_eq!(rates(0), None, "each hundred by itself");
    }
}
