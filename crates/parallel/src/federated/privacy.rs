//! Differential privacy: Rényi accounting of the sampled Gaussian mechanism.
//!
//! Updates clipped to norm C and Gaussian noise of deviation z·C on their sum hide whether a client
//! took part. The ε for a given δ follows from Rényi differential privacy: a round that samples
//! each client with probability q costs, at order α,
//!
//! ```text
//! (1/(α − 1)) ln Σₖ C(α, k) (1 − q)^(α−k) q^k exp(k (k − 1) / (2 z²))        k = 0 … α
//! ```
//!
//! for integer α (Mironov, Talwar and Zhang, "Rényi Differential Privacy of the Sampled Gaussian
//! Mechanism", 2019, section 3.3); costs of rounds add; and a cost of r at order α gives ε = r +
//! ln((α − 1)/α) − (ln δ + ln α)/(α − 1) (Canonne, Kamath and Steinke 2020). The minimum over all
//! orders is reported.
//!
//! Clients are drawn in fixed number without replacement, while the formula assumes independent
//! (Poisson) sampling at the same rate. Other frameworks report ε under the same approximation.

use lockstep_tensor::math::scalar;

/// Integer orders tried; larger ones matter only for tiny ε.
const ORDERS: std::ops::RangeInclusive<u32> = 2..=256;

/// ε after `num_rounds` rounds: the largest log-ratio of the probabilities of any outcome with and
/// without one client, up to a probability of `delta`. Infinite without noise.
pub fn epsilon(sampled: f64, noise: f64, num_rounds: u64, delta: f64) -> f64 {
    if num_rounds == 0 {
        return 0.0;
    }
    if noise <= 0.0 {
        return f64::INFINITY;
    }
    let at = |order: u32| {
        let alpha = f64::from(order);
        let cost = num_rounds as f64 * cost_of_round(sampled, noise, order);
        let gain = scalar::ln((alpha - 1.0) / alpha);
        cost + gain - (scalar::ln(delta) + scalar::ln(alpha)) / (alpha - 1.0)
    };
    ORDERS.map(at).fold(f64::INFINITY, f64::min).max(0.0)
}

/// Rényi cost of one round at an integer order.
fn cost_of_round(sampled: f64, noise: f64, order: u32) -> f64 {
    let alpha = f64::from(order);
    if sampled >= 1.0 {
        return alpha / (2.0 * noise * noise);
    }
    // Terms span hundreds of orders of magnitude, so they are added in log space.
    let mut terms = Vec::with_capacity(order as usize + 1);
    let mut ln_choose = 0.0;
    for k in 0..=order {
        let k_f = f64::from(k);
        let chance = (alpha - k_f) * scalar::ln(1.0 - sampled) + k_f * scalar::ln(sampled);
        terms.push(ln_choose + chance + k_f * (k_f - 1.0) / (2.0 * noise * noise));
        ln_choose += scalar::ln((alpha - k_f).max(1.0)) - scalar::ln(k_f + 1.0);
    }
    let max_term = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = terms.iter().map(|term| scalar::exp(term - max_term)).sum();
    (max_term + scalar::ln(sum)) / (alpha - 1.0)
}

#[cfg(test)]
mod tests {
    use super::epsilon;

    /// Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), section 3.2: q = 0.01, σ
    /// = 4, δ = 1e-5, T = 10,000 give ε ≈ 1.26 by the moments accountant. Its conversion from
    /// moments to ε is looser than the one used here, which is never above it.
    #[test]
    fn epsilon_is_at_most_that_of_the_moments_accountant() {
        let found = epsilon(0.01, 4.0, 10_000, 1e-5);
        assert!((1.0..=1.26).contains(&found), "{found}");
    }

    /// Tutorial of TensorFlow Privacy: 60,000 samples, batches of 256, noise 1.3, 15 epochs, δ =
    /// 1e-5: ε = 1.18 by its Rényi accountant with the older conversion to ε.
    #[test]
    fn epsilon_is_at_most_that_of_the_tensorflow_privacy_tutorial() {
        let (sampled, rounds) = (256.0 / 60_000.0, 15 * 60_000 / 256);
        let found = epsilon(sampled, 1.3, rounds, 1e-5);
        assert!((0.9..=1.18).contains(&found), "{found}");
    }

    #[test]
    fn without_sampling_it_is_the_gaussian_mechanism() {
        // One release, z = 1: min over α of α/2 + ln((α−1)/α) − (ln δ + ln α)/(α−1).
        let found = epsilon(1.0, 1.0, 1, 1e-5);
        assert!((4.0..4.8).contains(&found), "{found}");
    }

    #[test]
    fn less_noise_and_more_rounds_hide_less() {
        assert!(epsilon(0.1, 1.0, 100, 1e-5) > epsilon(0.1, 2.0, 100, 1e-5));
        assert!(epsilon(0.1, 1.0, 200, 1e-5) > epsilon(0.1, 1.0, 100, 1e-5));
        assert!(epsilon(0.1, 0.0, 1, 1e-5).is_infinite());
        assert_eq!(epsilon(0.1, 1.0, 0, 1e-5).to_bits(), 0.0_f64.to_bits());
    }
}
