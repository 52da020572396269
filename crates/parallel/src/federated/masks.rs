//! Secure aggregation: the coordinator learns the sum of all changes and none of them.
//!
//! Changes become whole numbers, in steps of a power of two, and are added modulo 2^64, where
//! additions have no order and no rounding. Every pair of clients shares a secret stream of
//! numbers; the one with the smaller number adds it to what it sends, the other subtracts it. Each
//! message alone is noise; in the sum all streams cancel, to the bit (Bonawitz et al., "Practical
//! Secure Aggregation", CCS 2017). A client that drops out leaves its streams in the messages of
//! the others, who then tell those streams' secrets, and the coordinator takes them out.
//!
//! Here the secrets of pairs come from the run's seed, because clients are simulated: whoever
//! knows the seed knows them. What is real is the arithmetic and what the coordinator sees.

use lockstep_tensor::random::Key;

/// Steps of one.
const STEPS: f64 = (1u64 << 32) as f64;
/// Values beyond this are cut off, so that sums of 2^20 clients stay in range.
const MOST: f64 = (1u64 << 11) as f64;

/// A value as a whole number of steps; what is no number is nothing.
pub fn to_fixed(value: f64) -> u64 {
    let steps = value.clamp(-MOST, MOST) * STEPS;
    if steps.is_nan() { 0 } else { (steps.round_ties_even() as i64).cast_unsigned() }
}

/// The value of a sum of whole numbers.
pub fn from_fixed(sum: u64) -> f64 {
    sum.cast_signed() as f64 / STEPS
}

/// The secret of two clients in a round, the same whoever asks.
fn secret(seed: u64, round: u64, a: usize, b: usize) -> Key {
    let (low, high) = (a.min(b) as u64, a.max(b) as u64);
    Key::new(seed, "federated.masks").with(round).with(low).with(high)
}

/// Adds to `message` what hides it: the streams that `client` shares with all `others`.
pub fn hide(seed: u64, round: u64, client: usize, others: &[usize], message: &mut [u64]) {
    for &other in others.iter().filter(|other| **other != client) {
        add_stream(secret(seed, round, client, other), client < other, message);
    }
}

/// Takes out of a sum what is left of clients that did not send: of every pair of one that did and
/// one that did not.
pub fn forgive(seed: u64, round: u64, sent: &[usize], lost: &[usize], sum: &mut [u64]) {
    for &client in sent {
        for &other in lost {
            add_stream(secret(seed, round, client, other), client > other, sum);
        }
    }
}

fn add_stream(key: Key, is_added: bool, message: &mut [u64]) {
    for (block, words) in (0..).zip(message.chunks_mut(2)) {
        let [a, b, c, d] = key.block(block);
        let masks = [u64::from(a) << 32 | u64::from(b), u64::from(c) << 32 | u64::from(d)];
        for (word, mask) in words.iter_mut().zip(masks) {
            *word = if is_added { word.wrapping_add(mask) } else { word.wrapping_sub(mask) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Vec<u64>> {
        let values =
            |client: usize| (0..7).map(move |i| (client as f64 - 2.0) * 0.3 + f64::from(i));
        (0..5).map(|client| values(client).map(to_fixed).collect()).collect()
    }

    fn sum<'a>(messages: impl IntoIterator<Item = &'a Vec<u64>>) -> Vec<u64> {
        let mut sum = vec![0_u64; 7];
        for message in messages {
            sum.iter_mut().zip(message).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        sum
    }

    #[test]
    fn the_sum_of_hidden_messages_is_that_of_plain_ones_to_the_bit() {
        let plain = messages();
        let mut hidden = plain.clone();
        let all = [0, 1, 2, 3, 4];
        for (client, message) in hidden.iter_mut().enumerate() {
            hide(7, 3, client, &all, message);
            assert!(message.iter().zip(&plain[client]).all(|(a, b)| a != b), "{client} is seen");
        }
        assert_eq!(sum(&hidden), sum(&plain));
        assert!((from_fixed(sum(&plain)[1]) - 5.0).abs() < 1e-8);
    }

    #[test]
    fn whoever_drops_out_is_taken_out() {
        let plain = messages();
        let mut hidden = plain.clone();
        for (client, message) in hidden.iter_mut().enumerate() {
            hide(7, 3, client, &[0, 1, 2, 3, 4], message);
        }
        let mut total = sum([&hidden[0], &hidden[2], &hidden[3]]);
        let expected = sum([&plain[0], &plain[2], &plain[3]]);
        assert_ne!(total, expected);
        forgive(7, 3, &[0, 2, 3], &[1, 4], &mut total);
        assert_eq!(total, expected);
    }

    #[test]
    fn whole_numbers_keep_nine_digits_and_survive_nonsense() {
        for value in [0.0, 1.0, -1.0, 1e-9, -3.25, 2000.0] {
            assert!((from_fixed(to_fixed(value)) - value).abs() < 2e-10, "{value}");
        }
        assert!((from_fixed(to_fixed(f64::INFINITY)) - 2048.0).abs() < 1e-9);
        assert_eq!(to_fixed(f64::NAN), 0);
    }
}
