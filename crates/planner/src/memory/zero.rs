//! What the stages of ZeRO save, by closed form.
//!
//! Every parameter takes bytes for its weight, its gradient and its optimizer state; each stage
//! divides one kind more among n workers. Activations are no part of it.

use lockstep_config::units::Bytes;

/// Bytes of one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerParameter {
    /// The weight that layers compute with.
    pub weight: u64,
    /// Its gradient.
    pub gradient: u64,
    /// Moments, and a master copy where the weight is rounded.
    pub optimizer: u64,
}

impl PerParameter {
    /// Adam with 16-bit weights and gradients and a 32-bit master copy.
    pub const MIXED_ADAM: Self = Self { weight: 2, gradient: 2, optimizer: 12 };

    /// Adam in 32 bits.
    pub const ADAM: Self = Self { weight: 4, gradient: 4, optimizer: 8 };

    /// The states of one of `num_workers` workers at a stage of ZeRO (0: nothing is divided).
    pub fn bytes(self, num_params: u64, stage: u8, num_workers: u64) -> Bytes {
        let kinds = [(self.optimizer, 1), (self.gradient, 2), (self.weight, 3)];
        let each = kinds.into_iter().map(|(bytes, divided_from)| {
            let all = bytes * num_params;
            if stage >= divided_from { all.div_ceil(num_workers) } else { all }
        });
        Bytes(each.sum())
    }

    /// The fewest workers with which the states fit into so many bytes.
    pub fn workers_to_fit(self, num_params: u64, stage: u8, room: Bytes) -> Option<u64> {
        let fits = |workers: &u64| self.bytes(num_params, stage, *workers) <= room;
        std::iter::successors(Some(1_u64), |workers| workers.checked_mul(2))
            .take(40)
            .find(fits)
            .map(|enough| (enough / 2 + 1..=enough).find(fits).unwrap_or(enough))
    }
}
