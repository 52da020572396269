//! How large a batch may be before larger ones stop saving steps.
//!
//! With a noise scale of Bc, a batch of B needs least·(1 + Bc/B) steps: below Bc twice the batch
//! halves the steps, far above it nothing is gained and every further sample is wasted. Of language
//! models Bc was published to grow as the loss falls, Bc = 2·10⁸ / L^(1/0.21) tokens with
//! L = (8.8·10¹³ / N)^0.076 for N parameters (Kaplan and others, 2020). That is an estimate, and
//! is marked as one.

/// Tokens of the critical batch at the loss that a model of so many parameters reaches.
pub fn critical_tokens(params: f64) -> f64 {
    let loss = (8.8e13 / params).powf(0.076);
    2e8 / loss.powf(1.0 / 0.21)
}

/// Share of samples that are not wasted by a batch of so many tokens.
pub fn sample_share(batch_tokens: f64, critical: f64) -> f64 {
    1.0 / (1.0 + batch_tokens / critical)
}

/// A warning where a batch is above the critical one.
pub fn warning(batch_tokens: f64, params: f64) -> Option<String> {
    let critical = critical_tokens(params);
    (batch_tokens > critical).then(|| {
        format!(
            "a batch of {:.1} M tokens is above the critical one of about {:.1} M (an estimate): \
             {:.0} % of the samples are wasted, and twice the batch saves only {:.0} % of the \
             steps; try --batch for {:.1} M tokens",
            batch_tokens / 1e6,
            critical / 1e6,
            100.0 * (1.0 - sample_share(batch_tokens, critical)),
            100.0 * saved(batch_tokens, critical),
            critical / 1e6,
        )
    })
}

/// Share of steps that twice the batch saves.
fn saved(batch_tokens: f64, critical: f64) -> f64 {
    let steps = |tokens: f64| 1.0 + critical / tokens;
    1.0 - steps(2.0 * batch_tokens) / steps(batch_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_critical_batch_half_of_the_samples_count() {
        let critical = critical_tokens(175e9);
        assert!((sample_share(critical, critical) - 0.5).abs() < 1e-12);
        // Far below it twice the batch halves the steps, far above it saves none.
        assert!((saved(1.0, critical) - 0.5).abs() < 1e-3);
        assert!(saved(1e6 * critical, critical) < 1e-3);
    }

    #[test]
    fn gpt_3s_batch_is_below_the_critical_one_and_larger_models_bear_larger_ones() {
        assert!(warning(3.2e6, 175e9).is_none());
        assert!(warning(1e9, 175e9).is_some_and(|line| line.contains("estimate")));
        assert!(critical_tokens(175e9) > critical_tokens(1e9));
    }
}
