//! Directions and moments of Adafactor against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::adafactor::{AdafactorStep, direction};
use lockstep_tensor::reference;

/// Matrices of fewer and more columns than a task has, a vector, and a matrix of one column.
const SHAPES: [[usize; 2]; 7] = [[1, 1], [1, 300], [7, 1], [5, 9], [130, 40], [3, 300], [70, 129]];

fn decay(t: u32) -> f64 {
    1.0 - f64::from(t).powf(-0.8)
}

#[test]
fn five_directions_match_the_reference() {
    for [num_rows, num_columns] in SHAPES {
        let len = num_rows * num_columns;
        let gradients = |t: u32| {
            let mut g = numbers(2 + t, len);
            // The last row never has a gradient, as an unused row of an embedding.
            if num_rows > 1 {
                g[len - num_columns..].fill(0.0);
            }
            g
        };
        let got = same_bits_everywhere(|cpu| {
            let mut rows = vec![0.0; if num_rows > 1 { num_rows } else { 0 }];
            let (mut columns, mut sums) = (vec![0.0; num_columns], vec![1e9; num_rows + len]);
            let mut all = Vec::new();
            for t in 1..6 {
                let mut g = gradients(t);
                let step = AdafactorStep { beta2: decay(t), grad_scale: 0.75 };
                direction(cpu, step, &mut g, [&mut rows, &mut columns], &mut sums);
                all.extend(g);
            }
            all.extend(columns);
            all.extend(rows);
            all
        });
        let (mut all, mut rows, mut columns) =
            (Vec::new(), vec![0.0; num_rows], vec![0.0; num_columns]);
        for t in 1..6 {
            let mut d = wide(&gradients(t));
            reference::adafactor::direction(decay(t), 0.75, &mut d, &mut rows, &mut columns);
            all.extend(d);
        }
        all.extend(columns);
        all.extend(if num_rows > 1 { rows } else { Vec::new() });
        assert_close(&got, &all, 5);
    }
}
