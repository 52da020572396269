//! The scale of the loss, for products in `fp16`.
//!
//! Gradients of a transformer are small, and `fp16` rounds what is below 2^-25 to zero. The loss is
//! therefore multiplied by a power of two, and so are all gradients; they are divided by it again
//! before anything looks at their size. Too large a scale shows as gradients that are not finite.
//! A dynamic scale is halved then, and the step is left out; after many steps without an overflow
//! it is doubled. Every worker sees the same norm, so all of them find the same scale.
//!
//! With S the scale, a gradient g overflows beyond `g S = 65,504` and is lost below
//! `g S = 2^-25`: more of one as S grows, less of the other, and never both at once.

use lockstep_config::{Dtype, LossScale, Precision};

/// Steps over which overflows are counted before anybody complains.
const WINDOW: u64 = 100;
/// Share of steps that may overflow without a word.
const MAX_OVERFLOW_RATE: f64 = 0.01;

/// Finds the scale of every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossScaler {
    /// None where nothing is scaled.
    scale: Option<LossScale>,
    /// Steps without an overflow that double the scale; none for a scale that stays.
    interval: Option<u64>,
    /// Steps since the scale changed or something overflowed.
    clean_steps: u64,
}

impl LossScaler {
    /// At the beginning of a run.
    pub fn new(precision: &Precision) -> Self {
        Self {
            scale: (precision.compute == Dtype::F16).then(|| precision.first_scale()),
            interval: precision.is_dynamic().then_some(precision.loss_scale_interval),
            clean_steps: 0,
        }
    }

    /// In the middle of one: the scale, and the steps since it changed.
    pub fn resumed(precision: &Precision, scale: LossScale, clean_steps: u64) -> Self {
        let start = Self::new(precision);
        Self { scale: start.scale.map(|_| scale), clean_steps, ..start }
    }

    /// The scale of the next step; none where nothing is scaled.
    pub fn scale(&self) -> Option<LossScale> {
        self.scale
    }

    /// Steps since the scale changed or something overflowed.
    pub fn clean_steps(&self) -> u64 {
        self.clean_steps
    }

    /// A step was fine.
    pub fn go_on(&mut self) {
        self.clean_steps += 1;
        if self.interval.is_some_and(|interval| self.clean_steps >= interval) {
            self.scale = self.scale.map(LossScale::doubled);
            self.clean_steps = 0;
        }
    }

    /// A gradient was not finite. Whether a smaller scale may help: then the next step has it.
    pub fn overflow(&mut self) -> bool {
        self.clean_steps = 0;
        let smaller = self.scale.filter(|_| self.interval.is_some()).and_then(LossScale::halved);
        if smaller.is_some() {
            self.scale = smaller;
        }
        smaller.is_some()
    }
}

/// Notices when steps overflow too often. What a dynamic scale needs to find its place is not
/// counted: the first step that is fine begins the count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowWatch {
    has_begun: bool,
    num_steps: u64,
    num_overflows: u64,
}

impl OverflowWatch {
    /// Takes note of a step; the share of the last hundred that have overflowed, where it is too
    /// much.
    pub fn note(&mut self, has_overflowed: bool) -> Option<f64> {
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
        assert!(scaler.overflow() && scaler.overflow());
        assert_eq!(exponent(&scaler), 14);
        scaler.go_on();
        scaler.go_on();
        assert!(scaler.overflow(), "the count begins again");
        let exponents: Vec<u8> = (0..7)
            .map(|_| {
                scaler.go_on();
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
            assert!(!scaler.overflow());
            assert_eq!(scaler.scale(), before);
        }
        let mut still = LossScaler::new(&precision(&["precision.loss_scale=1024"]));
        (0..5000).for_each(|_| still.go_on());
        assert_eq!(exponent(&still), 10);
    }

    #[test]
    fn nothing_is_scaled_in_f32_and_a_resumed_scaler_is_the_one_that_was_saved() {
        assert_eq!(LossScaler::new(&Recipe::default().precision).scale(), None);
        let precision = precision(&["precision.loss_scale_interval=5"]);
        let mut scaler = LossScaler::new(&precision);
        scaler.overflow();
        (0..3).for_each(|_| scaler.go_on());
        let scale = scaler.scale().expect("a scale");
        assert_eq!(LossScaler::resumed(&precision, scale, scaler.clean_steps()), scaler);
    }

    #[test]
    fn more_than_one_overflow_in_a_hundred_steps_is_too_many() {
        let mut watch = OverflowWatch::default();
        for _ in 0..30 {
            assert_eq!(watch.note(true), None, "a scale that finds its place");
        }
        let mut rates = |num_overflows: u64| {
            let rates: Vec<_> = (0..100).map(|i| watch.note(i >= 100 - num_overflows)).collect();
            assert!(rates[..99].iter().all(Option::is_none));
            rates[99]
        };
        assert_eq!(rates(1), None);
        assert_eq!(rates(2), Some(0.02));
        assert_eq!(rates(0), None, "each hundred by itself");
    }
}
