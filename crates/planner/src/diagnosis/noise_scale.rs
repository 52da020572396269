//! Gradient noise scale (McCandlish et al. 2018, appendix A.1).
//!
//! A batch of `B` sequences has a gradient whose squared norm is `|G|² + S/B` in the mean, for the
//! true gradient `G` and the trace `S` of the covariance of single sequences. Norms at two batch
//! sizes give both:
//!
//! ```text
//! |G|² = (B_large |G_large|² − B_small |G_small|²) / (B_large − B_small)
//! S    = (|G_small|² − |G_large|²) / (1/B_small − 1/B_large)
//! ```
//!
//! Each is noisy, so both are summed over all steps before `S/|G|²` is taken. The noise scale
//! approximates the critical batch: below it twice the batch halves the steps, far above it further
//! sequences are wasted (section 2.2 there).

use super::facts::NoiseFacts;

/// Noise scale in sequences; `None` without measurements, or where noise hides the gradient.
pub fn noise_scale(steps: &[NoiseFacts]) -> Option<f64> {
    let is_usable = |at: &&NoiseFacts| {
        let numbers =
            [at.small_batch, at.large_batch, at.small_norm_squared, at.large_norm_squared];
        numbers.iter().all(|number| number.is_finite() && *number > 0.0)
            && at.large_batch > at.small_batch
    };
    let (mut gradient, mut noise) = (0.0, 0.0);
    for at in steps.iter().filter(is_usable) {
        let &NoiseFacts { small_batch, large_batch, small_norm_squared, large_norm_squared } = at;
        gradient += (large_batch * large_norm_squared - small_batch * small_norm_squared)
            / (large_batch - small_batch);
        noise +=
            (small_norm_squared - large_norm_squared) / (1.0 / small_batch - 1.0 / large_batch);
    }
    (gradient > 0.0 && noise >= 0.0).then(|| noise / gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Norms in the mean for a gradient of squared norm 2 and noise of trace 12.
    fn at(small_batch: f64, large_batch: f64, error: f64) -> NoiseFacts {
        let norm_squared = |batch: f64| 2.0 + 12.0 / batch;
        NoiseFacts {
            small_batch,
            large_batch,
            small_norm_squared: norm_squared(small_batch) + error,
            large_norm_squared: norm_squared(large_batch),
        }
    }

    #[test]
    fn the_scale_is_noise_over_gradient_and_errors_average_out() {
        let found = noise_scale(&[at(2.0, 16.0, 0.5), at(2.0, 16.0, -0.5)]);
        assert!((found.expect("a scale") - 6.0).abs() < 1e-12, "{found:?}");
        let wrong = noise_scale(&[at(2.0, 16.0, 0.5)]).expect("a scale");
        assert!((wrong - 6.0).abs() > 0.5, "{wrong}");
        assert_eq!(noise_scale(&[]), None);
        let hidden = NoiseFacts { large_norm_squared: 0.1, ..at(2.0, 16.0, 0.0) };
        assert_eq!(noise_scale(&[hidden]), None, "the gradient is all noise");
    }
}
