//! LAMB by its definition, in `f64`.

use crate::moments::AdamStep;

/// Updates moments `m` and `v` from gradients `u`, and replaces those by the direction of the step.
pub fn direction(step: &AdamStep, p: &[f64], u: &mut [f64], m: &mut [f64], v: &mut [f64]) {
    let AdamStep { beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale, .. } = *step;
    for i in 0..p.len() {
        let g = u[i] * f64::from(grad_scale);
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        u[i] = (m[i] / bias1) / ((v[i] / bias2).sqrt() + eps) + weight_decay * p[i];
    }
}
