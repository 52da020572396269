//! Push-sum (Kempe et al. 2003; for SGD, Assran et al. 2019): averaging on directed graphs.
//!
//! On a directed graph a rank divides its weights among its out-neighbors; the rows of the mixing
//! matrix do not sum to 1, so vectors converge to a multiple of the mean that differs between
//! ranks. A scalar that starts as 1 everywhere and is mixed the same way converges to the same
//! multiple, and dividing by it gives the mean. Gradients are taken at the corrected weights z = x
//! / w and added to the biased weights x, so that their sum over ranks is preserved.

/// Biased weights of a rank, and the push-sum weight.
pub struct PushSum {
    /// Biased weights x, by bucket.
    pub biased: Vec<Vec<f32>>,
    /// Push-sum weight w.
    pub weight: f64,
    /// Whether mixing has begun; before, x and z are equal.
    has_begun: bool,
}

impl PushSum {
    /// With buffers for all buckets.
    pub fn new(biased: Vec<Vec<f32>>) -> Self {
        Self { biased, weight: 1.0, has_begun: false }
    }

    /// Applies the step of the corrected weights to the biased ones: x + (z' − x / w).
    pub fn follow(&mut self, bucket: usize, stepped: &[f32]) {
        if !self.has_begun {
            self.biased[bucket].copy_from_slice(stepped);
            return;
        }
        for (biased, stepped) in self.biased[bucket].iter_mut().zip(stepped) {
            let change = f64::from(*stepped) - f64::from(corrected(*biased, self.weight));
            *biased = (f64::from(*biased) + change) as f32;
        }
    }

    /// Sets the push-sum weight after mixing.
    pub fn set_weight(&mut self, weight: f64) {
        (self.weight, self.has_begun) = (weight, true);
    }

    /// Writes the corrected weights.
    pub fn correct(&self, bucket: usize, into: &mut [f32]) {
        for (into, biased) in into.iter_mut().zip(&self.biased[bucket]) {
            *into = corrected(*biased, self.weight);
        }
    }
}

fn corrected(biased: f32, weight: f64) -> f32 {
    (f64::from(biased) / weight) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_added_to_the_biased_weights() {
        let mut push = PushSum::new(vec![vec![0.0; 2]]);
        push.follow(0, &[1.0, 2.0]);
        push.set_weight(0.5);
        push.follow(0, &[2.5, 4.0]);
        assert_eq!(push.biased[0], [1.5, 2.0], "corrected weights were 2 and 4");
    }
}
