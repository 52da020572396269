//! A bias by its definition, in `f64`.

/// Every row plus the bias.
pub fn add(x_tn: &[f64], bias_n: &[f64]) -> Vec<f64> {
    x_tn.iter().enumerate().map(|(i, x)| x + bias_n[i % bias_n.len()]).collect()
}

/// The gradient of the bias.
pub fn backward(dy_tn: &[f64], width: usize) -> Vec<f64> {
    let mut dbias_n = vec![0.0; width];
    for (i, dy) in dy_tn.iter().enumerate() {
        dbias_n[i % width] += dy;
    }
    dbias_n
}
