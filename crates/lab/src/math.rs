//! Statistics for closed forms.

use lockstep_tensor::math::scalar::{exp, ln};

/// Cumulative distribution function of the standard normal distribution.
pub fn normal_below(x: f64) -> f64 {
    if x <= 0.0 { 0.5 * erfc(-x / std::f64::consts::SQRT_2) } else { 1.0 - normal_below(-x) }
}

/// Complementary error function for non-negative arguments: a series near 0, a continued fraction
/// beyond.
fn erfc(x: f64) -> f64 {
    if x < 2.5 {
        let mut term = x;
        let mut sum = x;
        let mut n = 0.0;
        while term.abs() > 1e-17 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return 1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut fraction = x;
    for k in (1..=60).rev() {
        fraction = x + f64::from(k) / 2.0 / fraction;
    }
    exp(-x * x) / fraction * (0.5 * std::f64::consts::FRAC_2_SQRT_PI)
}

/// Expected maximum of `n` draws from a distribution on positive numbers with the cumulative
/// distribution function `below`: the integral of 1 - F(x)^n.
pub fn expected_maximum(n: usize, scale: f64, below: impl Fn(f64) -> f64) -> f64 {
    // Steps grow with x, because the tail is long and smooth.
    let (mut x, mut sum) = (0.0, 0.0);
    let missing = |x: f64| 1.0 - powi(below(x), n);
    let mut here = missing(0.0);
    while here > 1e-9 && x < 1e6 * scale {
        let step = (0.002 * scale).max(0.002 * x);
        let middle = missing(x + 0.5 * step);
        let there = missing(x + step);
        sum += step / 6.0 * (here + 4.0 * middle + there);
        (x, here) = (x + step, there);
    }
    sum
}

/// Integer power.
pub fn powi(x: f64, n: usize) -> f64 {
    lockstep_tensor::math::scalar::powi(x, i32::try_from(n).unwrap_or(i32::MAX))
}

/// Cumulative distribution function of the log-normal distribution with a mean and a coefficient
/// of variation.
pub fn log_normal_below(x: f64, mean: f64, variation: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let variance = ln(1.0 + variation * variation);
    let center = ln(mean) - 0.5 * variance;
    normal_below((ln(x) - center) / variance.sqrt())
}

/// Quantile of sorted numbers by the nearest-rank method.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let index = (share * sorted.len() as f64).ceil() as usize;
    sorted[index.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_distribution_matches_tables() {
        let cases = [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_543),
            (-1.96, 0.024_997_895_148_220),
            (-4.0, 3.167_124_183_311_99e-5),
        ];
        for (x, share) in cases {
            let found = normal_below(x);
            assert!((found - share).abs() < 1e-12 * (1.0 + 1.0 / share), "{x}: {found}");
        }
    }

    #[test]
    fn expected_maximum_of_uniform_draws_is_exact() {
        for n in [1, 4, 9] {
            let found = expected_maximum(n, 1.0, |x| x.min(1.0));
            assert!((found - n as f64 / (n as f64 + 1.0)).abs() < 1e-6, "{n}: {found}");
        }
    }
}
