//! Muon by its definition, in `f64`.

/// Updates momentum `m` from gradients `d`, and replaces those by the direction.
pub fn direction(mu: f64, grad_scale: f64, d: &mut [f64], m: &mut [f64]) {
    for (d, m) in d.iter_mut().zip(m) {
        let g = *d * grad_scale;
        *m = mu * *m + (1.0 - mu) * g;
        *d = (1.0 - mu) * g + mu * *m;
    }
}
