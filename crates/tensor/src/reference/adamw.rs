//! AdamW by its definition, in `f64`.

use crate::moments::AdamStep;

/// One step on parameters `p` and moments `m` and `v`.
pub fn step(step: &AdamStep, p: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
    let AdamStep { lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale } = *step;
    let grad_scale = f64::from(grad_scale);
    for i in 0..p.len() {
        let g = g[i] * grad_scale;
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let (m_hat, v_hat) = (m[i] / bias1, v[i] / bias2);
        p[i] -= lr * weight_decay * p[i];
        p[i] -= lr * m_hat / (v_hat.sqrt() + eps);
    }
}
