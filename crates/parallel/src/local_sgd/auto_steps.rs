//! Choice of `sync.local_steps = "auto"`: the fewest steps of a round for which the exchange that
//! ends it takes at most a tenth of the time.

/// Maximum fraction of the time that the exchange may take.
const MAX_EXCHANGE_FRACTION: f64 = 0.1;

/// Most steps of a round that a run chooses.
pub const MAX_LOCAL_STEPS: u64 = 1000;

/// Fewest steps that keep the exchange within its fraction of the time, from the seconds of a step
/// and of an exchange.
pub fn steps_for(step: f64, exchange: f64) -> u64 {
    let steps = (1.0 - MAX_EXCHANGE_FRACTION) / MAX_EXCHANGE_FRACTION * exchange / step;
    if steps.is_finite() { steps.ceil().clamp(1.0, MAX_LOCAL_STEPS as f64) as u64 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_takes_a_tenth_of_the_time() {
        assert_eq!(steps_for(0.01, 0.1), 90);
        assert_eq!(steps_for(0.01, 0.0001), 1);
        assert_eq!(steps_for(0.01, 1e9), 1000, "no more than that");
        assert_eq!(steps_for(0.0, 0.0), 1);
    }
}
