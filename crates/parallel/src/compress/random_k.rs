//! Random-k: one element of every stretch travels, chosen by chance, the same on all workers.
//!
//! Since everybody draws the same places they need not travel, and the values can be added up on
//! their way like any gradient. With error feedback what is left out comes later. Without it each
//! value stands for its stretch and is multiplied by its length, which is right in the mean and
//! noisy.

use super::top_k::num_sent;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// Stretches of which one element each travels: as many as elements that do.
fn stretch(len: usize, sent: usize, index: usize) -> Range<usize> {
    index * len / sent..(index + 1) * len / sent
}

/// The places, and the lengths of their stretches.
pub fn places(len: usize, ratio: f64, key: Key) -> impl Iterator<Item = (usize, usize)> {
    let sent = num_sent(len, ratio);
    (0..sent).map(move |index| {
        let stretch = stretch(len, sent, index);
        let chance = key.uniform_f64(index as u64);
        (stretch.start + (chance * stretch.len() as f64) as usize, stretch.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_place_has_its_turn_and_none_is_taken_twice() {
        let (len, ratio) = (97, 0.1);
        let mut seen = vec![0; len];
        for step in 0..2000 {
            let key = Key::new(5, "places").with(step);
            let places: Vec<_> = places(len, ratio, key).collect();
            let different: BTreeSet<_> = places.iter().map(|(place, _)| *place).collect();
            assert_eq!((places.len(), different.len()), (10, 10));
            assert_eq!(places.iter().map(|(_, len)| len).sum::<usize>(), len);
            for place in different {
                seen[place] += 1;
            }
        }
        // About one in ten, 200 times; the deviation is 13.
        assert!(seen.iter().all(|count| (120..300).contains(count)), "{seen:?}");
    }
}
