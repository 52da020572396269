//! Directions of Muon against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::muon::direction;
use lockstep_tensor::reference;

#[test]
fn five_directions_match_the_reference() {
    for len in [0, 1, 16, 17, 257, 2 * ELEMENTS + 3] {
        let got = same_bits_everywhere(|cpu| {
            let (mut all, mut m) = (Vec::new(), vec![0.0; len]);
            for t in 0..5 {
                let mut g = numbers(2 + t, len);
                direction(cpu, 0.95, 0.75, &mut g, &mut m);
                all.extend(g);
            }
            all.extend(m);
            all
        });
        let (mut all, mut m) = (Vec::new(), vec![0.0; len]);
        for t in 0..5 {
            let mut d = wide(&numbers(2 + t, len));
            reference::muon::direction(0.95, 0.75, &mut d, &mut m);
            all.extend(d);
        }
        all.extend(m);
        assert_close(&got, &all, 5);
    }
}
