//! One direction of a picture: from numbers to places, and the numbers that are written there.

use crate::card::Unit;

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    is_log: bool,
    low: f64,
    high: f64,
    unit: Unit,
    /// The places of its ends.
    from: f64,
    to: f64,
}

impl Axis {
    /// Around some numbers, with a little room; a linear one of which nothing is far from zero
    /// begins there.
    pub(super) fn around(
        numbers: impl Iterator<Item = f64> + Clone,
        is_log: bool,
        unit: Unit,
        (from, to): (f64, f64),
    ) -> Self {
        let is_log = is_log && numbers.clone().any(|number| number > 0.0);
        let usable = numbers.filter(|number| number.is_finite() && (!is_log || *number > 0.0));
        let (mut low, mut high) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high {
            (low, high) = (if is_log { 1.0 } else { 0.0 }, 1.0);
        }
        if is_log {
            let room = if high / low < 1.5 { 2.0 } else { (high / low).powf(0.04) };
            return Self { is_log, low: low / room, high: high * room, unit, from, to };
        }
        if low >= 0.0 && low < 0.6 * high {
            low = 0.0;
        }
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let (floor, ceiling) = (low, high + 0.06 * span);
        low = if floor == 0.0 { 0.0 } else { floor - 0.06 * span };
        high = ceiling;
        Self { is_log, low, high, unit, from, to }
    }

    /// Where a number lies.
    pub(super) fn place(&self, number: f64) -> f64 {
        let share = if self.is_log {
            (number / self.low).ln() / (self.high / self.low).ln()
        } else {
            (number - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(-0.02, 1.02) * (self.to - self.from)
    }

    /// Whether a number can be drawn.
    pub(super) fn has(&self, number: f64) -> bool {
        number.is_finite() && (!self.is_log || number > 0.0)
    }

    /// Round numbers with their words.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let powers = if self.is_log { self.powers() } else { Vec::new() };
        // Within less than a power of ten hardly any are round.
        let numbers = if powers.len() < 3 { self.steps() } else { powers };
        numbers.into_iter().map(|number| (number, words(self.unit, number))).collect()
    }

    /// What ticks are round in: long times in minutes, hours or days.
    fn base(&self) -> f64 {
        let bases: &[f64] = if self.unit == Unit::Seconds { &[86400.0, 3600.0, 60.0] } else { &[] };
        let fits =
            |base: &&f64| self.high >= 2.0 * **base && (!self.is_log || self.low >= 0.05 * **base);
        bases.iter().find(fits).copied().unwrap_or(1.0)
    }

    fn powers(&self) -> Vec<f64> {
        let base = self.base();
        let (low, high) = (self.low / base, self.high / base);
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let digits: &[f64] = match last - first {
            0..=2 => &[1.0, 2.0, 5.0],
            3..=4 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let every = ((last - first) / 10 + 1) as usize;
        let powers = (first..=last).step_by(every);
        let all = powers.flat_map(|power| digits.iter().map(move |d| d * 10_f64.powi(power)));
        all.filter(|number| (low..=high).contains(number)).map(|number| base * number).collect()
    }

    fn steps(&self) -> Vec<f64> {
        let base = self.base();
        let rough = (self.high - self.low) / 6.0 / base;
        let power = 10_f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough);
        let step = round.unwrap_or(10.0) * power * base;
        let first = (self.low / step).ceil() as i64;
        let numbers = (first..).map(|index| index as f64 * step);
        numbers.take_while(|number| *number <= self.high).collect()
    }
}

/// A number at a mark: what is round needs no zeros.
pub(super) fn words(unit: Unit, number: f64) -> String {
    let shown = unit.show(number);
    if unit == Unit::Share {
        return shown.replace(".0 %", " %");
    }
    shown.trim_end_matches(" 00 s").trim_end_matches(" 00 min").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let axis = |numbers: &[f64], log| {
            Axis::around(numbers.iter().copied(), log, Unit::Number, (0.0, 1.0))
        };
        let words = |axis: &Axis| axis.ticks().into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(words(&axis(&[0.1, 0.97], false)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(words(&axis(&[1.0, 100.0], true)), ["1", "3", "10", "30", "100"]);
        assert_eq!(words(&axis(&[2.5, 9.0], true)), ["4", "6", "8"]);
        let times = Axis::around([100.0, 1500.0].into_iter(), true, Unit::Seconds, (0.0, 1.0));
        assert_eq!(words(&times), ["2 min", "5 min", "10 min", "20 min"]);
        for (low, high) in [(1e3, 1e9), (1e-9, 1.0), (3.0, 3.0), (900.0, 1000.0)] {
            for log in [false, true] {
                let found = axis(&[low, high], log);
                assert!((2..=12).contains(&found.ticks().len()), "{found:?} {:?}", found.ticks());
                assert!((0.0..=1.0).contains(&found.place(low)), "{found:?}");
            }
        }
    }
}
