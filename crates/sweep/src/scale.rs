//! Axes of a plot: linear, logarithmic or categorical, with their ticks.

/// Ratio of largest to smallest value from which an axis is logarithmic.
const LOG_RATIO: f64 = 15.0;

/// Largest number of labels.
const MAX_LABELS: usize = 9;

/// Margin before the first value and after the last, as a share of the axis.
const MARGIN: f64 = 0.06;

/// An axis.
#[derive(Debug)]
pub struct Scale {
    kind: Kind,
    /// The values as labels, where they are few.
    named: Vec<(f64, String)>,
}

#[derive(Debug)]
enum Kind {
    Numbers { low: f64, high: f64, is_log: bool },
    Categories(Vec<String>),
}

/// A label and its position.
#[derive(Debug)]
pub struct Tick {
    /// Position along the axis, 0 to 1.
    pub share: f64,
    /// The label.
    pub label: String,
}

impl Scale {
    /// An axis for numbers.
    pub fn of(values: &[f64]) -> Self {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (low, high) =
            finite().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return Self {
                kind: Kind::Numbers { low: 0.0, high: 1.0, is_log: false },
                named: vec![],
            };
        }
        let is_log = low > 0.0 && high / low > LOG_RATIO;
        let kind = if is_log {
            Kind::Numbers { low: low.log10(), high: high.log10(), is_log }
        } else if high > low {
            Kind::Numbers { low, high, is_log }
        } else {
            let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            Kind::Numbers { low: low - room, high: high + room, is_log }
        };
        Self { kind, named: Vec::new() }
    }

    /// An axis for the values of a key: numeric if all of them are.
    pub fn of_texts(texts: &[&str]) -> Self {
        let mut distinct: Vec<String> = Vec::new();
        for text in texts {
            if !distinct.iter().any(|other| other == text) {
                distinct.push((*text).to_owned());
            }
        }
        let numbers: Option<Vec<f64>> =
            distinct.iter().map(|text| text.parse().ok().filter(|n: &f64| n.is_finite())).collect();
        let Some(numbers) = numbers else {
            return Self { kind: Kind::Categories(distinct), named: Vec::new() };
        };
        let mut scale = Self::of(&numbers);
        if distinct.len() <= MAX_LABELS {
            scale.named = numbers.into_iter().zip(distinct).collect();
        }
        scale
    }

    /// Whether the axis is logarithmic.
    pub fn is_log(&self) -> bool {
        matches!(self.kind, Kind::Numbers { is_log: true, .. })
    }

    /// Position of a number, 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        let Kind::Numbers { low, high, is_log } = self.kind else { return 0.5 };
        let value = if is_log { value.log10() } else { value };
        MARGIN + (1.0 - 2.0 * MARGIN) * ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Position of a value of a key, 0 to 1.
    pub fn share_of_text(&self, text: &str) -> f64 {
        match &self.kind {
            Kind::Categories(names) => {
                let index = names.iter().position(|name| name == text).unwrap_or(0);
                (index as f64 + 0.5) / names.len() as f64
            }
            Kind::Numbers { .. } => self.share(text.parse().unwrap_or(f64::NAN)),
        }
    }

    /// Ticks with their labels.
    pub fn ticks(&self) -> Vec<Tick> {
        let numbered = |value: f64| Tick { share: self.share(value), label: short(value) };
        match &self.kind {
            Kind::Categories(names) => {
                let tick = |w: &String| Tick { share: self.share_of_text(w), label: w.clone() };
                names.iter().map(tick).collect()
            }
            _ if !self.named.is_empty() => {
                let tick = |(v, label): &(f64, String)| Tick {
                    share: self.share(*v),
                    label: label.clone(),
                };
                self.named.iter().map(tick).collect()
            }
            Kind::Numbers { low, high, is_log: true } => {
                let digits: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let (first, last) = (low.floor() as i32, high.ceil() as i32);
                // Powers of ten, thinned out where there are many.
                let step = ((last - first) as usize / MAX_LABELS).max(1);
                let values = (first..=last)
                    .step_by(step)
                    .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
                let is_inside = |value: &f64| (*low..=*high).contains(&value.log10());
                values.filter(is_inside).map(numbered).collect()
            }
            Kind::Numbers { low, high, is_log: false } => {
                let rough = (high - low) / (MAX_LABELS - 3) as f64;
                let power = 10_f64.powf(rough.log10().floor());
                let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|d| d * power >= rough);
                let step = digit.unwrap_or(10.0) * power;
                let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
                (first..=last).map(|number| numbered(number as f64 * step)).collect()
            }
        }
    }
}

/// A number with four significant digits at most.
fn short(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    let is_plain = rounded == 0.0 || (1e-3..1e5).contains(&rounded.abs());
    if is_plain { format!("{rounded}") } else { format!("{rounded:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn a_key_is_labelled_with_its_values_and_wide_ranges_are_logarithmic() {
        let rates = Scale::of_texts(&["1e-3", "1e-2", "0.1", "1e-3"]);
        assert!(rates.is_log());
        assert_eq!(labels(&rates), ["1e-3", "1e-2", "0.1"]);
        let middle = rates.share_of_text("1e-2");
        assert!((middle - 0.5).abs() < 1e-9, "{middle}");
        let names = Scale::of_texts(&["sgd", "adam"]);
        assert_eq!(labels(&names), ["sgd", "adam"]);
        assert_eq!((names.share_of_text("sgd"), names.share_of_text("adam")), (0.25, 0.75));
    }

    #[test]
    fn many_values_are_labelled_with_round_numbers() {
        assert_eq!(labels(&Scale::of(&[1.2, 2.9])), ["1.5", "2", "2.5"]);
        let wide = Scale::of(&[1e-9, 1.0]);
        assert!(labels(&wide).contains(&"1e-6".to_owned()), "{:?}", labels(&wide));
        assert!(labels(&wide).len() <= MAX_LABELS + 2);
    }

    #[test]
    fn every_value_is_on_its_axis() {
        let all = [vec![], vec![0.0], vec![5.0], vec![-1.0, 1.0], vec![1e-300, 1e300]];
        for values in all {
            let scale = Scale::of(&values);
            assert!(values.iter().all(|value| (0.0..=1.0).contains(&scale.share(*value))));
            let ticks = scale.ticks();
            assert!(ticks.len() < 30 && ticks.iter().all(|t| (0.0..=1.0).contains(&t.share)));
        }
    }
}
