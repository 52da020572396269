//! Schedule-free AdamW by its definition, in `f64`.

use crate::schedule_free::ScheduleFreeStep;

/// One step on the average `x`, the fast sequence `z` and second moments `v`, from gradients at
/// `y = (1 − beta1) z + beta1 x`, which is updated too.
pub fn step(
    step: &ScheduleFreeStep,
    y: &mut [f64],
    g: &[f64],
    x: &mut [f64],
    z: &mut [f64],
    v: &mut [f64],
) {
    let ScheduleFreeStep { lr, beta1, beta2, eps, weight_decay, bias2, averaging, grad_scale } =
        *step;
    for i in 0..y.len() {
        let g = g[i] * f64::from(grad_scale);
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        z[i] -= lr * g / ((v[i] / bias2).sqrt() + eps) + lr * weight_decay * y[i];
        x[i] = (1.0 - averaging) * x[i] + averaging * z[i];
        y[i] = (1.0 - beta1) * z[i] + beta1 * x[i];
    }
}
