//! Features and targets of all samples of a problem, computed on first use.

use super::digits;
use super::spectrum::{dot, eigenvalues};
use lockstep_config::{Family, Model, Problem};
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::ops::Range;
use std::sync::OnceLock;

/// Scale of the logits of logistic regression.
const LOGISTIC_STRENGTH: f64 = 3.0;

/// Writes the features of a sample and returns its target.
type Generator = Box<dyn Fn(u64, &mut [f32]) -> f32>;

/// Samples of a problem. The first `problem.samples` are training samples, the rest is held out.
#[derive(Debug)]
pub(super) struct Samples {
    family: Family,
    problem: Problem,
    table: OnceLock<Table>,
}

#[derive(Debug)]
struct Table {
    features: Vec<f32>,
    /// Index of a class, a real target, or +1 and −1.
    targets: Vec<f32>,
}

impl Samples {
    pub(super) fn new(model: &Model) -> Self {
        Self { family: model.family, problem: model.problem, table: OnceLock::new() }
    }

    /// Number of features of a sample.
    pub(super) fn width(&self) -> usize {
        if self.family == Family::Mlp { digits::NUM_PIXELS } else { self.problem.dim }
    }

    /// Indices of training samples.
    pub(super) fn train(&self) -> Range<usize> {
        0..self.problem.samples
    }

    /// Indices of held-out samples.
    pub(super) fn held_out(&self) -> Range<usize> {
        self.problem.samples..self.problem.samples + self.problem.held_out
    }

    /// Features of a sample.
    pub(super) fn row(&self, sample: usize) -> &[f32] {
        &self.table().features[sample * self.width()..][..self.width()]
    }

    /// Target of a sample.
    pub(super) fn target(&self, sample: usize) -> f32 {
        self.table().targets[sample]
    }

    /// Targets of some samples, without the features of any.
    pub(super) fn targets(&self, samples: Range<usize>) -> Vec<f32> {
        let (mut row, generate) = (vec![0.0; self.width()], self.generator());
        samples.map(|sample| generate(sample as u64, &mut row)).collect()
    }

    /// Bytes of all features and targets, which the first use of a sample allocates.
    pub(super) fn table_bytes(&self) -> usize {
        self.held_out().end * (self.width() + 1) * size_of::<f32>()
    }

    fn table(&self) -> &Table {
        self.table.get_or_init(|| {
            let num_samples = self.held_out().end;
            let mut features = vec![0.0; num_samples * self.width()];
            let generate = self.generator();
            let rows = features.chunks_exact_mut(self.width()).enumerate();
            let targets = rows.map(|(sample, row)| generate(sample as u64, row)).collect();
            Table { features, targets }
        })
    }

    /// Generator of the samples of this problem.
    fn generator(&self) -> Generator {
        let Problem { seed, dim, condition, noise, density, .. } = self.problem;
        if self.family == Family::Mlp {
            return Box::new(move |sample, row| digits::draw(seed, sample, row) as f32);
        }
        let key = |stream: &str| Key::new(seed, stream);
        let (features, truth, chance) = (key("features"), key("truth"), key("chance"));
        let present = key("present");
        let deviations: Vec<f64> =
            eigenvalues(dim, condition).iter().map(|variance| variance.sqrt()).collect();
        let scale = 1.0 / (dim as f64).sqrt();
        let truth: Vec<f64> =
            (0..dim).map(|index| scale * f64::from(truth.normal(index as u64))).collect();
        let is_logistic = self.family == Family::Logistic;
        Box::new(move |sample, row| {
            let first = sample * dim as u64;
            for (index, (value, deviation)) in row.iter_mut().zip(&deviations).enumerate() {
                *value = (deviation * f64::from(features.normal(first + index as u64))) as f32;
            }
            if density < 1.0 {
                let larger = 1.0 / density.sqrt();
                for (index, value) in row.iter_mut().enumerate() {
                    let is_present = present.uniform_f64(first + index as u64) < density;
                    *value = if is_present { (larger * f64::from(*value)) as f32 } else { 0.0 };
                }
            }
            let wide: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
            let exact = dot(&wide, &truth);
            if is_logistic {
                let odds = scalar::exp(-LOGISTIC_STRENGTH * exact);
                return if chance.uniform_f64(sample) < 1.0 / (1.0 + odds) { 1.0 } else { -1.0 };
            }
            (exact + noise * f64::from(chance.normal(sample))) as f32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::tests::{CONVEX, convex};
    use super::*;

    #[test]
    fn the_table_has_the_predicted_size_and_targets_come_without_it() {
        for family in CONVEX.into_iter().chain([Family::Mlp]) {
            let samples = Samples::new(&convex(family));
            let targets = samples.targets(samples.held_out());
            assert!(samples.table.get().is_none(), "no table is allocated");
            let found: Vec<f32> = samples.held_out().map(|sample| samples.target(sample)).collect();
            assert_eq!(found, targets, "{family:?}");
            let Table { features, targets } = samples.table();
            assert_eq!(4 * (features.len() + targets.len()), samples.table_bytes(), "{family:?}");
        }
    }
}
