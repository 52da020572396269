//! Nesterov's momentum by its definition, in `f64`.

/// One step with momentum `mu` on parameters `p` and their `buffer`.
pub fn step(
    lr: f64,
    mu: f64,
    weight_decay: f64,
    grad_scale: f64,
    p: &mut [f64],
    g: &[f64],
    buffer: &mut [f64],
) {
    for ((p, g), buffer) in p.iter_mut().zip(g).zip(buffer) {
        let d = g * grad_scale + weight_decay * *p;
        *buffer = mu * *buffer + d;
        *p -= lr * (d + mu * *buffer);
    }
}
