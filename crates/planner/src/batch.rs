//! Critical batch size: the batch above which a larger one saves hardly any steps.
//!
//! With a gradient noise scale of Bc, a batch of B needs Smin·(1 + Bc/B) steps (McCandlish et al.
//! 2018). Below Bc twice the batch halves the steps; far above it further samples are wasted. For
//! language models Bc grows as the loss falls: Bc = 2·10⁸ / L^(1/0.21) tokens with L = (8.8·10¹³ /
//! N)^0.076 for N parameters (Kaplan et al. 2020). The result is an estimate, and reports mark it
//! as one.

/// Critical batch in tokens at the converged loss of a model with this many parameters.
pub fn critical_tokens(params: f64) -> f64 {
    let loss = (8.8e13 / params).powf(0.076);
    2e8 / loss.powf(1.0 / 0.21)
}

/// Sample efficiency of a batch: 1 minus the share of samples that are wasted.
pub fn sample_share(batch_tokens: f64, critical: f64) -> f64 {
    1.0 / (1.0 + batch_tokens / critical)
}

/// Warning for a batch above the critical one.
pub fn warning(batch_tokens: f64, params: f64) -> Option<String> {
    let critical = critical_tokens(params);
    (batch_tokens > critical).then(|| {
        format!(
            "a batch of {} tokens is above the critical one of about {} (an estimate): \
             {:.0} % of the samples are wasted, and twice the batch saves only {:.0} % of the \
             steps; try --batch for {} tokens",
            amount(batch_tokens),
            amount(critical),
            100.0 * (1.0 - sample_share(batch_tokens, critical)),
            100.0 * steps_saved(batch_tokens, critical),
            amount(critical),
        )
    })
}

/// Millions of tokens, or thousands of a small model's.
fn amount(tokens: f64) -> String {
    if tokens < 1e6 { format!("{:.1} k", tokens / 1e3) } else { format!("{:.1} M", tokens / 1e6) }
}

/// Share of steps saved by doubling the batch.
fn steps_saved(batch_tokens: f64, critical: f64) -> f64 {
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
        // Far below the critical batch a doubling halves the steps, far above it saves none.
        assert!((steps_saved(1.0, critical) - 0.5).abs() < 1e-3);
        assert!(steps_saved(1e6 * critical, critical) < 1e-3);
    }

    #[test]
    fn gpt_3s_batch_is_below_the_critical_one_which_grows_with_the_model() {
        assert!(warning(3.2e6, 175e9).is_none());
        assert!(warning(1e9, 175e9).is_some_and(|line| line.contains("estimate")));
        // A small model's critical batch is thousands of tokens, not 0.0 M.
        assert!(warning(2e6, 4e4).is_some_and(|line| !line.contains("0.0 M")));
        assert!(critical_tokens(175e9) > critical_tokens(1e9));
    }
}
