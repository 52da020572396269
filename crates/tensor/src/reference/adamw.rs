//! AdamW by its definition, in `f64`.

use crate::adamw::AdamwStep;

/// One step on parameters `p` and moments `m` and `v`.
pub fn step(step: &AdamwStep, p: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
    let [lr, beta1, beta2, eps] = [step.lr, step.beta1, step.beta2, step.eps].map(f64::from);
    let [bias1, bias2] = [step.bias1, step.bias2].map(f64::from);
    let [weight_decay, grad_scale] = [step.weight_decay, step.grad_scale].map(f64::from);
    for i in 0..p.len() {
        let g = g[i] * grad_scale;
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let (m_hat, v_hat) = (m[i] / bias1, v[i] / bias2);
        p[i] -= lr * weight_decay * p[i];
        p[i] -= lr * m_hat / (v_hat.sqrt() + eps);
    }
}
