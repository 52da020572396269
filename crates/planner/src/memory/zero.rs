//! ZeRO in closed form (Rajbhandari et al. 2020).
//!
//! Every parameter takes bytes for its weight, its gradient and its optimizer state; each ZeRO
//! stage shards one more of them among n workers. Activations are not included.

use lockstep_config::units::Bytes;

/// Bytes per parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerParameter {
    /// Weight in compute precision.
    pub weight: u64,
    /// Gradient.
    pub gradient: u64,
    /// Moments, and a master weight where the weight is rounded.
    pub optimizer: u64,
}

impl PerParameter {
    /// Adam with 16-bit weights and gradients and a 32-bit master weight.
    pub const MIXED_ADAM: Self = Self { weight: 2, gradient: 2, optimizer: 12 };

    /// Adam in 32 bits.
    pub const ADAM: Self = Self { weight: 4, gradient: 4, optimizer: 8 };

    /// Model states of one of `num_workers` workers at a ZeRO stage (0: nothing is sharded).
    pub fn bytes(self, num_params: u64, stage: u8, num_workers: u64) -> Bytes {
        let step_classes = [(self.optimizer, 1), (self.gradient, 2), (self.weight, 3)];
        let each = step_classes.into_iter().map(|(bytes, divided_from)| {
            let all = bytes * num_params;
            if stage >= divided_from { all.div_ceil(num_workers) } else { all }
        });
        Bytes(each.sum())
    }

    /// Fewest workers with which the model states fit.
    pub fn workers_to_fit(self, num_params: u64, stage: u8, room: Bytes) -> Option<u64> {
        let fits = |workers: &u64| self.bytes(num_params, stage, *workers) <= room;
        std::iter::successors(Some(1_u64), |workers| workers.checked_mul(2))
            .take(40)
            .find(fits)
            .map(|enough| (enough / 2 + 1..=enough).find(fits).unwrap_or(enough))
    }
}
