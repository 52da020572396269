//! Features and targets of all samples of a problem, made once when they are first asked for.

use super::digits;
use super::spectrum::{dot, eigenvalues};
use lockstep_config::{Family, Model, Problem};
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::ops::Range;
use std::sync::OnceLock;

/// How strongly the features of logistic regression speak for one of the two classes.
const LOGISTIC_STRENGTH: f64 = 3.0;

/// Fills in the features of a sample and returns its target.
type Maker = Box<dyn Fn(u64, &mut [f32]) -> f32>;

/// See the module's text. The first `problem.samples` are to learn from, the rest is held out.
#[derive(Debug)]
pub(super) struct Samples {
    family: Family,
    problem: Problem,
    table: OnceLock<Table>,
}

#[derive(Debug)]
struct Table {
    features: Vec<f32>,
    /// The number of a class; or the number that is to be met; or +1 and −1.
    targets: Vec<f32>,
}

impl Samples {
    pub(super) fn new(model: &Model) -> Self {
        Self { family: model.family, problem: model.problem, table: OnceLock::new() }
    }

    /// Features of a sample.
    pub(super) fn width(&self) -> usize {
        if self.family == Family::Mlp { digits::NUM_PIXELS } else { self.problem.dim }
    }

    /// The numbers of those to learn from.
    pub(super) fn train(&self) -> Range<usize> {
        0..self.problem.samples
    }

    /// The numbers of those that are held out.
    pub(super) fn held_out(&self) -> Range<usize> {
        self.problem.samples..self.problem.samples + self.problem.held_out
    }

    /// The features of a sample.
    pub(super) fn row(&self, sample: usize) -> &[f32] {
        &self.table().features[sample * self.width()..][..self.width()]
    }

    /// What is to be found from them.
    pub(super) fn target(&self, sample: usize) -> f32 {
        self.table().targets[sample]
    }

    fn table(&self) -> &Table {
        self.table.get_or_init(|| {
            let num_samples = self.problem.samples + self.problem.held_out;
            let mut features = vec![0.0; num_samples * self.width()];
            let make = self.maker();
            let rows = features.chunks_exact_mut(self.width()).enumerate();
            let targets = rows.map(|(sample, row)| make(sample as u64, row)).collect();
            Table { features, targets }
        })
    }

    /// How samples of this problem are made.
    fn maker(&self) -> Maker {
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
                    let is_there = present.uniform_f64(first + index as u64) < density;
                    *value = if is_there { (larger * f64::from(*value)) as f32 } else { 0.0 };
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
