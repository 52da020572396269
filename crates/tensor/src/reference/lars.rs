//! LARS by its definition, in `f64`.

/// One step with momentum `mu` on parameters `p` and their `buffer`; `local_lr` is the learning
/// rate times the local rate of the tensor.
pub fn step(
    local_lr: f64,
    mu: f64,
    weight_decay: f64,
    grad_scale: f64,
    p: &mut [f64],
    g: &[f64],
    buffer: &mut [f64],
) {
    for ((p, g), buffer) in p.iter_mut().zip(g).zip(buffer) {
        *buffer = mu * *buffer + local_lr * (g * grad_scale + weight_decay * *p);
        *p -= *buffer;
    }
}

/// The learning rate of a tensor with these norms, relative to that of the run.
pub fn local(trust: f64, weight_decay: f64, param_norm: f64, grad_norm: f64) -> f64 {
    trust * param_norm / (grad_norm + weight_decay * param_norm)
}
