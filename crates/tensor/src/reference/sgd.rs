//! Gradient descent by its definition, in `f64`.

/// One plain step on parameters `p`.
pub fn step(lr: f64, weight_decay: f64, grad_scale: f64, p: &mut [f64], g: &[f64]) {
    for (p, g) in p.iter_mut().zip(g) {
        *p -= lr * (g * grad_scale + weight_decay * *p);
    }
}

/// One step with momentum `mu` on parameters `p` and their `buffer`.
pub fn momentum(
    lr: f64,
    mu: f64,
    weight_decay: f64,
    grad_scale: f64,
    p: &mut [f64],
    g: &[f64],
    buffer: &mut [f64],
) {
    for ((p, g), buffer) in p.iter_mut().zip(g).zip(buffer) {
        *buffer = mu * *buffer + g * grad_scale + weight_decay * *p;
        *p -= lr * *buffer;
    }
}
