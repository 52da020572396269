//! RMSNorm by its definition, in `f64`.

/// Output and the factor 1 / sqrt(mean(x²) + eps) of each row.
pub fn forward(x_tc: &[f64], weight_c: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let width = weight_c.len();
    let (mut y_tc, mut rstd_t) = (Vec::new(), Vec::new());
    for x in x_tc.chunks_exact(width) {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
        let rstd = 1.0 / (mean_square + eps).sqrt();
        y_tc.extend(x.iter().zip(weight_c).map(|(x, weight)| x * rstd * weight));
        rstd_t.push(rstd);
    }
    (y_tc, rstd_t)
}

/// Gradients of the input and of the weight.
pub fn backward(x_tc: &[f64], weight_c: &[f64], eps: f64, dy_tc: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let width = weight_c.len();
    let (_, rstd_t) = forward(x_tc, weight_c, eps);
    let (mut dx_tc, mut dweight_c) = (Vec::new(), vec![0.0; width]);
    for (row, rstd) in rstd_t.iter().enumerate() {
        let x_hat = |j: usize| x_tc[row * width + j] * rstd;
        let dy = |j: usize| dy_tc[row * width + j];
        let mean_pull = (0..width).map(|j| dy(j) * weight_c[j] * x_hat(j)).sum::<f64>();
        let mean_pull = mean_pull / width as f64;
        for j in 0..width {
            dx_tc.push(rstd * (dy(j) * weight_c[j] - x_hat(j) * mean_pull));
            dweight_c[j] += dy(j) * x_hat(j);
        }
    }
    (dx_tc, dweight_c)
}
