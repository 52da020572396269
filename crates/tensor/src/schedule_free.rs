//! Schedule-free AdamW (Defazio et al. 2024, "The Road Less Scheduled") on flat buffers: steps at
//! an interpolation of a fast sequence and its running average.
//!
//! Algorithm 1 of the paper, with g the scaled gradient at y and c the weight of this step in the
//! average:
//! ```text
//! v ← beta2 · v + (1 − beta2) · g · g
//! u ← g / (sqrt(v) / sqrt(bias2) + eps) + weight_decay · y
//! z ← z − lr · u
//! x ← x + c · (z − x)
//! y ← z + beta1 · (x − z)
//! ```
//! y is where gradients are taken, x is the average that is evaluated and saved. Both are kept: y
//! could be computed from x and z, but x not from y and z without a rounding error, and then the
//! bits of a run would depend on when it was evaluated. An element's result depends on that element
//! alone, so any division of the buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Scalars of one step of schedule-free AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleFreeStep {
    /// Learning rate of this step.
    pub lr: f64,
    /// Share of the average in the point of the gradient.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Keeps the denominator away from zero.
    pub eps: f64,
    /// Weight decay; zero for parameters that do not decay.
    pub weight_decay: f64,
    /// Bias correction of the second moment: 1 − beta2 to the number of steps.
    pub bias2: f64,
    /// Weight of this step in the average: one in the first step.
    pub averaging: f64,
    /// Factor on every gradient; clipping sets it below one.
    pub grad_scale: f32,
}

/// One step: updates the point of the gradient `y`, the average `x`, the fast sequence `z` and the
/// second moments `v` from gradients `g`.
pub fn step(
    cpu: &Cpu,
    step: &ScheduleFreeStep,
    y: &mut [f32],
    g: &[f32],
    x: &mut [f32],
    z: &mut [f32],
    v: &mut [f32],
) {
    assert_eq!(y.len(), g.len(), "one gradient for each parameter");
    assert_eq!([x.len(), z.len(), v.len()], [y.len(); 3], "three values for each parameter");
    let factors = Factors::new(step);
    cpu.for_each_split([y, x, z, v], [ELEMENTS; 4], |i, [y, x, z, v]| {
        let g = &g[i * ELEMENTS..][..y.len()];
        cpu.run(Update { factors, y, g, x, z, v });
    });
}

/// Factors of the loop, each rounded once; C layout, because kernels of devices read it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    beta2: f32,
    one_minus_beta2: f32,
    sqrt_bias2: f32,
    eps: f32,
    weight_decay: f32,
    minus_lr: f32,
    averaging: f32,
    toward_average: f32,
    grad_scale: f32,
}

impl Factors {
    pub(crate) fn new(step: &ScheduleFreeStep) -> Self {
        Self {
            beta2: step.beta2 as f32,
            one_minus_beta2: (1.0 - step.beta2) as f32,
            sqrt_bias2: step.bias2.sqrt() as f32,
            eps: step.eps as f32,
            weight_decay: step.weight_decay as f32,
            minus_lr: -step.lr as f32,
            averaging: step.averaging as f32,
            toward_average: step.beta1 as f32,
            grad_scale: step.grad_scale,
        }
    }
}

struct Update<'a> {
    factors: Factors,
    y: &'a mut [f32],
    g: &'a [f32],
    x: &'a mut [f32],
    z: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { factors: k, y, g, x, z, v } = self;
        let (beta2, one_minus_beta2) = (s.splat(k.beta2), s.splat(k.one_minus_beta2));
        let (sqrt_bias2, eps) = (s.splat(k.sqrt_bias2), s.splat(k.eps));
        let (weight_decay, minus_lr) = (s.splat(k.weight_decay), s.splat(k.minus_lr));
        let (averaging, toward_average) = (s.splat(k.averaging), s.splat(k.toward_average));
        let grad_scale = s.splat(k.grad_scale);
        for i in 0..num_groups(y) {
            let g = s.mul(load(s, g, i), grad_scale);
            let new_v = s.fma(s.mul(g, one_minus_beta2), g, s.mul(load(s, v, i), beta2));
            let denominator = s.add(s.div(s.sqrt(new_v), sqrt_bias2), eps);
            let u = s.fma(load(s, y, i), weight_decay, s.div(g, denominator));
            let new_z = s.fma(u, minus_lr, load(s, z, i));
            let old_x = load(s, x, i);
            let new_x = s.fma(s.sub(new_z, old_x), averaging, old_x);
            store(s, new_v, v, i);
            store(s, new_z, z, i);
            store(s, new_x, x, i);
            store(s, s.fma(s.sub(new_x, new_z), toward_average, new_z), y, i);
        }
    }
}
