//! Push-sum: averaging where edges go one way.
//!
//! On such a graph a worker knows whom it sends to and divides what it has among them; what it
//! hears does not add up to 1, so vectors end at a multiple of the mean that differs from worker to
//! worker. A number that begins as 1 everywhere and travels the same way ends at the same multiple,
//! and dividing by it gives the mean (Kempe et al. 2003; for SGD Assran et al. 2019). Gradients are
//! taken at the corrected weights z = x / w and added to the uncorrected x, so that their sum over
//! workers is what it would be anywhere.

/// A worker's uncorrected weights, and the correction.
pub struct PushSum {
    /// x, by bucket.
    pub biased: Vec<Vec<f32>>,
    /// w.
    pub weight: f64,
    /// Whether it has begun: before, both are the same.
    has_begun: bool,
}

impl PushSum {
    /// Room for buckets.
    pub fn new(biased: Vec<Vec<f32>>) -> Self {
        Self { biased, weight: 1.0, has_begun: false }
    }

    /// Takes the step that corrected weights have taken: x + (z' − x / w).
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

    /// What was sent and heard has its correction from here on.
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
    fn a_step_is_added_to_what_is_not_corrected() {
        let mut push = PushSum::new(vec![vec![0.0; 2]]);
        push.follow(0, &[1.0, 2.0]);
        push.set_weight(0.5);
        push.follow(0, &[2.5, 4.0]);
        assert_eq!(push.biased[0], [1.5, 2.0], "corrected weights were 2 and 4");
    }
}
