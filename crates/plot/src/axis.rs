//! One direction of a chart: from values to pixels, and the ticks with their labels.

use std::fmt;

/// Labels of an axis at most.
const MAX_LABELS: usize = 12;

/// Pixels between two neighbouring labels of given values at least.
const LABEL_PIXELS: f64 = 62.0;

/// Which values get a tick.
#[derive(Debug, Clone, PartialEq)]
enum Ticks {
    /// Round numbers: 1, 2 or 5 times a power of ten, in multiples of the largest base that fits.
    Round { bases: Vec<f64> },
    /// Powers of two.
    PowersOfTwo,
    /// The values of the points, as far as their labels have room.
    Given(Vec<f64>),
    /// Names at equal distances; values are their indices.
    Categories(Vec<String>),
}

/// An axis before it knows its values.
pub struct Axis {
    /// Quantity and unit, printed beside the axis.
    pub label: String,
    is_log: bool,
    ticks: Ticks,
    format: Box<dyn Fn(f64) -> String>,
}

impl fmt::Debug for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, is_log, ticks, .. } = self;
        write!(f, "Axis({label}, log {is_log}, {ticks:?})")
    }
}

impl Axis {
    /// A linear axis with round ticks, labelled by `format`.
    pub fn new(label: impl Into<String>, format: impl Fn(f64) -> String + 'static) -> Self {
        let ticks = Ticks::Round { bases: Vec::new() };
        Self { label: label.into(), is_log: false, ticks, format: Box::new(format) }
    }

    /// Names at equal distances; the value of a point is the index of its name.
    pub fn categories(label: impl Into<String>, names: Vec<String>) -> Self {
        let ticks = Ticks::Categories(names);
        Self { label: label.into(), is_log: false, ticks, format: Box::new(|_| String::new()) }
    }

    /// Makes the axis logarithmic.
    pub fn log(self) -> Self {
        self.log_if(true)
    }

    /// Makes the axis logarithmic or linear.
    pub fn log_if(self, is_log: bool) -> Self {
        Self { is_log, ..self }
    }

    /// Ticks that are round in the largest of these units that fits, such as minutes and hours.
    pub fn round_in(self, bases: &[f64]) -> Self {
        let mut bases = bases.to_vec();
        bases.sort_by(|a, b| b.total_cmp(a));
        Self { ticks: Ticks::Round { bases }, ..self }
    }

    /// Ticks at powers of two.
    pub fn powers_of_two(self) -> Self {
        Self { ticks: Ticks::PowersOfTwo, ..self }
    }

    /// Ticks at given values, as far as their labels have room.
    pub fn ticks_at(self, mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        values.dedup();
        Self { ticks: Ticks::Given(values), ..self }
    }

    /// The axis around some values, from pixel `from` to pixel `to`.
    pub(crate) fn fit(&self, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Fitted<'_> {
        let usable = values.filter(|value| value.is_finite() && (!self.is_log || *value > 0.0));
        let (mut low, mut high) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if let Ticks::Categories(names) = &self.ticks {
            (low, high) = (-0.5, names.len() as f64 - 0.5);
        } else if low > high {
            (low, high) = if self.is_log { (0.5, 2.0) } else { (0.0, 1.0) };
        } else if self.is_log {
            let margin = if high / low < 1.5 { 2.0 } else { (high / low).powf(0.04) };
            (low, high) = (low / margin, high * margin);
        } else {
            (low, high) = with_margin(low, high);
        }
        let mut fitted = Fitted { axis: self, low, high, pixels };
        // The floor of an axis that does not start at 0 lies on a tick, so that it has a label.
        // A lower floor may make the ticks coarser: the second round finds it below those.
        for _ in 0..2 {
            if let (Ticks::Round { bases }, true) = (&self.ticks, fitted.is_truncated()) {
                let step = fitted.step(fitted.base(bases));
                fitted.low = (fitted.low / step).floor() * step;
            }
        }
        fitted
    }
}

/// A linear range with room around it; a range that is near zero starts there.
fn with_margin(low: f64, high: f64) -> (f64, f64) {
    let low = if low >= 0.0 && low < 0.6 * high { 0.0 } else { low };
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    let below = if low == 0.0 { 0.0 } else { low - 0.06 * span };
    (below, high + 0.06 * span)
}

/// An axis with its range.
#[derive(Debug)]
pub(crate) struct Fitted<'a> {
    axis: &'a Axis,
    low: f64,
    high: f64,
    pixels: (f64, f64),
}

impl Fitted<'_> {
    /// The pixel of a value; values outside the range lie just outside the axis.
    pub(crate) fn pixel(&self, value: f64) -> f64 {
        let share = if self.axis.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.pixels.0 + share.clamp(-0.02, 1.02) * (self.pixels.1 - self.pixels.0)
    }

    /// Whether a value can be drawn.
    pub(crate) fn has(&self, value: f64) -> bool {
        value.is_finite() && (!self.axis.is_log || value > 0.0)
    }

    /// Whether it is linear, but starts above 0: lengths are then no proportions.
    pub(crate) fn is_truncated(&self) -> bool {
        let is_round = matches!(self.axis.ticks, Ticks::Round { .. });
        is_round && !self.axis.is_log && self.low > 0.0
    }

    /// Label of the axis.
    pub(crate) fn label(&self) -> String {
        self.axis.label.clone()
    }

    /// Pixels and labels of the ticks.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let with_label = |value: f64| (self.pixel(value), (self.axis.format)(value));
        match &self.axis.ticks {
            Ticks::Categories(names) => {
                let tick =
                    |(index, name): (usize, &String)| (self.pixel(index as f64), name.clone());
                names.iter().enumerate().map(tick).collect()
            }
            Ticks::Given(values) => {
                let mut ticks: Vec<(f64, String)> = Vec::new();
                for &value in values.iter().filter(|value| self.has(**value)) {
                    let pixel = self.pixel(value);
                    if ticks.last().is_none_or(|(last, _)| (pixel - last).abs() >= LABEL_PIXELS) {
                        ticks.push(with_label(value));
                    }
                }
                ticks
            }
            Ticks::PowersOfTwo => self.powers_of_two().into_iter().map(with_label).collect(),
            Ticks::Round { bases } => {
                let base = self.base(bases);
                let powers = if self.axis.is_log { self.powers_of_ten(base) } else { Vec::new() };
                // Less than a power of ten holds hardly any round numbers of that kind.
                let values = if powers.len() < 3 { self.steps(base) } else { powers };
                values.into_iter().map(with_label).collect()
            }
        }
    }

    /// The largest unit that fits the range at least twice.
    fn base(&self, bases: &[f64]) -> f64 {
        let fits = |base: &&f64| {
            self.high >= 2.0 * **base && (!self.axis.is_log || self.low >= 0.05 * **base)
        };
        bases.iter().find(fits).copied().unwrap_or(1.0)
    }

    fn powers_of_two(&self) -> Vec<f64> {
        let low = self.low.max(1.0).log2().ceil() as i32;
        let high = self.high.max(1.0).log2().floor() as i32;
        let step = ((high - low) as usize / MAX_LABELS + 1).max(1);
        (low..=high).step_by(step).map(|power| f64::from(power).exp2()).collect()
    }

    fn powers_of_ten(&self, base: f64) -> Vec<f64> {
        let (low, high) = (self.low / base, self.high / base);
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let digits: &[f64] = match last - first {
            0..=2 => &[1.0, 2.0, 5.0],
            3..=4 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let step = ((last - first) / 10 + 1) as usize;
        let powers = (first..=last).step_by(step);
        let all = powers.flat_map(|power| digits.iter().map(move |d| d * 10_f64.powi(power)));
        all.filter(|value| (low..=high).contains(value)).map(|value| base * value).collect()
    }

    /// Round distance of ticks, at most six of them.
    fn step(&self, base: f64) -> f64 {
        let rough = (self.high - self.low) / 6.0 / base;
        let power = 10_f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough);
        round.unwrap_or(10.0) * power * base
    }

    fn steps(&self, base: f64) -> Vec<f64> {
        let step = self.step(base);
        let first = (self.low / step).ceil() as i64;
        let values = (first..).map(|index| index as f64 * step);
        values.take_while(|value| *value <= self.high).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        let fitted = axis.fit(values.iter().copied(), (0.0, 1000.0));
        fitted.ticks().into_iter().map(|(_, label)| label).collect()
    }

    fn plain() -> Axis {
        Axis::new("x", |value| format!("{}", (value * 1e6).round() / 1e6))
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(labels(&plain(), &[0.1, 0.97]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(&plain().log(), &[1.0, 100.0]), ["1", "3", "10", "30", "100"]);
        assert_eq!(labels(&plain().log(), &[2.5, 9.0]), ["4", "6", "8"]);
        let minutes = Axis::new("time", |value| format!("{} min", value / 60.0)).log();
        let minutes = minutes.round_in(&[60.0, 3600.0]);
        assert_eq!(labels(&minutes, &[100.0, 1500.0]), ["2 min", "5 min", "10 min", "20 min"]);
    }

    #[test]
    fn every_range_has_ticks_and_holds_its_values() {
        for (low, high) in [(1e3, 1e9), (1e-9, 1.0), (3.0, 3.0), (900.0, 1000.0)] {
            for is_log in [false, true] {
                let axis = plain().log_if(is_log);
                let fitted = axis.fit([low, high].into_iter(), (0.0, 1.0));
                assert!((2..=12).contains(&fitted.ticks().len()), "{fitted:?}");
                for value in [low, high] {
                    assert!((0.0..=1.0).contains(&fitted.pixel(value)), "{fitted:?} {value}");
                }
            }
        }
    }

    #[test]
    fn floor_of_an_axis_that_starts_above_0_has_a_label() {
        for (low, high) in [(0.76, 1.0), (900.0, 1000.0), (0.87, 0.873), (12.0, 19.0)] {
            let axis = plain();
            let fitted = axis.fit([low, high].into_iter(), (500.0, 0.0));
            assert!(fitted.is_truncated(), "{fitted:?}");
            let (floor, label) = fitted.ticks().swap_remove(0);
            assert!((floor - 500.0).abs() < 1e-6 && !label.is_empty(), "{floor}, {fitted:?}");
        }
        assert!(!plain().fit([0.1, 1.0].into_iter(), (0.0, 1.0)).is_truncated());
    }

    #[test]
    fn powers_of_two_and_categories() {
        let bytes = plain().log().powers_of_two();
        assert_eq!(labels(&bytes, &[1024.0, 8192.0]), ["1024", "2048", "4096", "8192"]);
        let names = Axis::categories("optimizer", vec!["sgd".into(), "adamw".into()]);
        let fitted = names.fit([0.0, 1.0].into_iter(), (0.0, 100.0));
        let ticks = fitted.ticks();
        assert_eq!(ticks[0], (25.0, "sgd".to_owned()));
        assert_eq!(ticks[1], (75.0, "adamw".to_owned()));
    }

    #[test]
    fn given_values_are_labelled_as_far_as_there_is_room() {
        let axis = plain().ticks_at(vec![1.0, 1.01, 2.0, f64::NAN]);
        assert_eq!(labels(&axis, &[1.0, 2.0]), ["1", "2"]);
    }

    #[test]
    fn an_axis_without_values_can_be_drawn() {
        for is_log in [false, true] {
            assert!(!labels(&plain().log_if(is_log), &[]).is_empty());
        }
    }
}
