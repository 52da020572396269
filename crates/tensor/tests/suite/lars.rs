//! LARS against its definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::lars::step;
use lockstep_tensor::reference;

const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];
const MU: f32 = 0.9;
const DECAY: f32 = 0.1;
const SCALE: f32 = 0.75;

#[test]
fn five_steps_of_falling_length_match_the_reference() {
    let lr = |t: u32| 0.05 / (1 + t) as f32;
    for len in LENGTHS {
        let got = same_bits_everywhere(|cpu| {
            let (mut p, mut buffer) = (numbers(1, len), vec![0.0; len]);
            for t in 0..5 {
                let g = numbers(2 + t, len);
                step(cpu, lr(t), MU, DECAY, SCALE, &mut p, &g, &mut buffer);
            }
            [p, buffer].concat()
        });
        let (mut p, mut buffer) = (wide(&numbers(1, len)), vec![0.0; len]);
        let [mu, decay, scale] = [MU, DECAY, SCALE].map(f64::from);
        for t in 0..5 {
            let g = wide(&numbers(2 + t, len));
            reference::lars::step(lr(t).into(), mu, decay, scale, &mut p, &g, &mut buffer);
        }
        assert_close(&got[..len], &p, 5);
        assert_close(&got[len..], &buffer, 5);
    }
}
