//! Every parameter's gradient against differences of the loss.
//!
//! The engine computes in `f32`, so the derivative by one element is below rounding. Along a random
//! direction through a whole tensor the loss changes measurably, and an error in any element of the
//! gradient shows.

use super::tiny::{Batch, Outcome, TRAIN, Tiny, assert_same, variants};
use lockstep_model::{Param, Recompute};
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, Isa};

/// Step length of the differences in parameter space: shorter where the loss is steep, because its
/// curvature is larger there.
fn reach(slope: f64) -> f64 {
    0.02 / slope.abs().max(0.5)
}

const NUM_RANDOM_DIRECTIONS: u64 = 3;
/// Rounding of the loss (a few units in the last place of `f32`) over the reach.
const NOISE: f64 = 1e-5;
/// Truncation error of the difference formula, and rounding of the gradient itself.
const RELATIVE: f64 = 4e-3;

#[test]
fn every_gradient_agrees_with_differences_of_the_loss() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let mut tiny = Tiny::new(&model);
        let Outcome { grads, .. } = tiny.train(&cpu, &batch.microbatch());
        let places: Vec<_> =
            tiny.blueprint.params().map(|(b, p)| (b, p.range(), p.name.clone())).collect();
        for (block, range, name) in places {
            let grad = &grads[block][range.clone()];
            for direction in directions(grad, &name) {
                let analytic: f64 = dot(grad, &direction);
                let numeric = slope(
                    &cpu,
                    &mut tiny,
                    &batch,
                    (block, range.start),
                    &direction,
                    reach(analytic),
                );
                let error = (analytic - numeric).abs();
                let bound = NOISE + RELATIVE * analytic.abs();
                assert!(error <= bound, "{name}: {analytic} but {numeric}\n{model:?}");
            }
        }
    }
}

#[test]
fn gradients_accumulate() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 2);
        let tiny = Tiny::new(&model);
        let from_zero = tiny.train(&cpu, &batch.microbatch()).grads;
        let from_one = tiny.run(&cpu, &batch.microbatch(), TRAIN, Recompute::None, 1.0).grads;
        for (zero, one) in from_zero.iter().flatten().zip(from_one.iter().flatten()) {
            let error = (zero + 1.0 - one).abs();
            assert!(error <= 4.0 * f32::EPSILON * (1.0 + zero.abs()), "{zero} + 1 is not {one}");
        }
    }
}

#[test]
fn undefined_gradients_are_set_to_those_from_zero() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let (batch, all) = (Batch::new(&model, 2), |_: &Param| true);
        let some = |param: &Param| !param.name.contains("norm") && !param.name.contains("1.attn");
        for is_trained in [&all as &dyn Fn(&Param) -> bool, &some] {
            for tiny in [Tiny::new(&model), Tiny::new(&model).in_halves()] {
                let grads = |start| {
                    let (batch, what) = (batch.microbatch(), Recompute::None);
                    tiny.run_part(&cpu, &batch, TRAIN, what, start, is_trained).grads
                };
                let (from_zero, set) = (grads(0.0), grads(f32::NAN));
                for (zero, set) in from_zero.iter().zip(&set) {
                    // A sum from zero has no negative zeros.
                    let set: Vec<f32> = set.iter().map(|x| 0.0 + x).collect();
                    assert_same(zero, &set, &format!("{model:?}"));
                }
            }
        }
    }
}

/// The steepest direction, where an error of scale shows, and random ones.
fn directions(grad: &[f32], name: &str) -> Vec<Vec<f64>> {
    let steepest = grad.iter().map(|g| f64::from(*g)).collect();
    let random = (0..NUM_RANDOM_DIRECTIONS).map(|n| {
        let key = Key::new(n, name);
        (0..grad.len()).map(|i| f64::from(key.normal(i as u64))).collect()
    });
    std::iter::once(steepest).chain(random).map(unit).collect()
}

fn unit(mut direction: Vec<f64>) -> Vec<f64> {
    let length = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
    for v in &mut direction {
        *v /= length;
    }
    direction
}

fn dot(grad: &[f32], direction: &[f64]) -> f64 {
    grad.iter().zip(direction).map(|(g, v)| f64::from(*g) * v).sum()
}

/// Derivative of the mean loss along a direction, by a fourth-order difference of four points.
fn slope(
    cpu: &Cpu,
    tiny: &mut Tiny,
    batch: &Batch,
    (block, start): (usize, usize),
    direction: &[f64],
    reach: f64,
) -> f64 {
    let microbatch = batch.microbatch();
    let original = tiny.params[block][start..start + direction.len()].to_vec();
    let mut loss_at = |steps: f64| {
        let params = &mut tiny.params[block][start..start + direction.len()];
        for ((param, original), v) in params.iter_mut().zip(&original).zip(direction) {
            *param = (f64::from(*original) + steps * reach / 2.0 * v) as f32;
        }
        tiny.train(cpu, &microbatch).loss / microbatch.num_targets as f64
    };
    let inner = loss_at(1.0) - loss_at(-1.0);
    let outer = loss_at(2.0) - loss_at(-2.0);
    loss_at(0.0);
    (8.0 * inner - outer) / (6.0 * reach)
}
