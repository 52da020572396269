//! Random-k: one randomly drawn element of every span is sent, the same on all ranks.
//!
//! All ranks draw the same indices, so the indices are not sent and the values are all-reduced.
//! With error feedback the residual is sent later. Without it each value stands for its span and is
//! multiplied by the span's length, which is unbiased and noisy.

use super::top_k::num_sent;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// Span number `index` of `sent` equal spans.
fn span(len: usize, sent: usize, index: usize) -> Range<usize> {
    index * len / sent..(index + 1) * len / sent
}

/// Drawn indices, with the lengths of their spans.
pub fn places(len: usize, ratio: f64, key: Key) -> impl Iterator<Item = (usize, usize)> {
    let sent = num_sent(len, ratio);
    (0..sent).map(move |index| {
        let span = span(len, sent, index);
        let chance = key.uniform_f64(index as u64);
        (span.start + (chance * span.len() as f64) as usize, span.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn indices_are_distinct_and_uniform() {
        let (len, ratio) = (97, 0.1);
        let mut counts = vec![0; len];
        for step in 0..2000 {
            let key = Key::new(5, "places").with(step);
            let places: Vec<_> = places(len, ratio, key).collect();
            let different: BTreeSet<_> = places.iter().map(|(place, _)| *place).collect();
            assert_eq!((places.len(), different.len()), (10, 10));
            assert_eq!(places.iter().map(|(_, len)| len).sum::<usize>(), len);
            for place in different {
                counts[place] += 1;
            }
        }
        // One in ten of 2000 is 200; the standard deviation is 13.
        assert!(counts.iter().all(|count| (120..300).contains(count)), "{counts:?}");
    }
}
