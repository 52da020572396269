//! Lion by its definition, in `f64`.

use crate::lion::LionStep;

/// One step on parameters `p` and momentum `m`.
pub fn step(step: &LionStep, p: &mut [f64], g: &[f64], m: &mut [f64]) {
    let LionStep { lr, beta1, beta2, weight_decay, grad_scale } = *step;
    for i in 0..p.len() {
        let g = g[i] * f64::from(grad_scale);
        let direction = beta1 * m[i] + (1.0 - beta1) * g;
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        p[i] -= lr * (sign + weight_decay * p[i]);
        m[i] = beta2 * m[i] + (1.0 - beta2) * g;
    }
}
