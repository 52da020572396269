//! LayerNorm by its definition, in `f64`.

/// Output, and the mean and the factor 1 / sqrt(variance + eps) of each row.
pub fn forward(
    x_tc: &[f64],
    weight_c: &[f64],
    bias_c: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let width = weight_c.len();
    let (mut y_tc, mut mean_t, mut rstd_t) = (Vec::new(), Vec::new(), Vec::new());
    for x in x_tc.chunks_exact(width) {
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let rstd = 1.0 / (variance + eps).sqrt();
        y_tc.extend((0..width).map(|j| (x[j] - mean) * rstd * weight_c[j] + bias_c[j]));
        mean_t.push(mean);
        rstd_t.push(rstd);
    }
    (y_tc, mean_t, rstd_t)
}

/// Gradients of the input, of the weight and of the bias.
pub fn backward(
    x_tc: &[f64],
    weight_c: &[f64],
    eps: f64,
    dy_tc: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let width = weight_c.len();
    let (_, mean_t, rstd_t) = forward(x_tc, weight_c, &vec![0.0; width], eps);
    let mut dx_tc = Vec::new();
    let (mut dweight_c, mut dbias_c) = (vec![0.0; width], vec![0.0; width]);
    for (row, (mean, rstd)) in mean_t.iter().zip(&rstd_t).enumerate() {
        let x_hat = |j: usize| (x_tc[row * width + j] - mean) * rstd;
        let dy = |j: usize| dy_tc[row * width + j];
        let g = |j: usize| dy(j) * weight_c[j];
        let mean_g = (0..width).map(g).sum::<f64>() / width as f64;
        let mean_pull = (0..width).map(|j| g(j) * x_hat(j)).sum::<f64>() / width as f64;
        for j in 0..width {
            dx_tc.push(rstd * (g(j) - mean_g - x_hat(j) * mean_pull));
            dweight_c[j] += dy(j) * x_hat(j);
            dbias_c[j] += dy(j);
        }
    }
    (dx_tc, dweight_c, dbias_c)
}
