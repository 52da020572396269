//! Rotary positions by their definition, in `f64`.

use crate::math::scalar::{cos, powf, sin};
use crate::rope::Rotation;

/// The rows with rotated heads; the rest of each head and of each row is copied.
pub fn rotate(head_dim: usize, theta: f64, rows: &[f64], rotation: &Rotation) -> Vec<f64> {
    let mut turned = rows.to_vec();
    let half = head_dim / 2;
    for row in 0..rows.len() / rotation.row_stride {
        let position = rotation.first_position + row % rotation.tokens_per_sequence;
        for head in 0..rotation.num_heads {
            for i in 0..half {
                let angle = position as f64 * powf(theta, -((2 * i) as f64) / head_dim as f64);
                let angle = if rotation.inverse { -angle } else { angle };
                let left = row * rotation.row_stride + head * rotation.head_stride + i;
                let right = left + half;
                turned[left] = rows[left] * cos(angle) - rows[right] * sin(angle);
                turned[right] = rows[right] * cos(angle) + rows[left] * sin(angle);
            }
        }
    }
    turned
}
