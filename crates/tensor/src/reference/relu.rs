//! ReLU by its definition, in `f64`.

/// `max(x, 0)`.
pub fn forward(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.max(0.0)).collect()
}

/// The gradient of the input.
pub fn backward(x: &[f64], dy: &[f64]) -> Vec<f64> {
    x.iter().zip(dy).map(|(x, dy)| if *x > 0.0 { *dy } else { 0.0 }).collect()
}
