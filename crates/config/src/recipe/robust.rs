//! Workers that may lie to each other or to servers, and what is done about it.

use super::{FederatedAttack, FederatedCombine, Sync};

/// What is done about workers that may lie, and who does.
#[derive(Debug, Clone, PartialEq)]
pub struct Robust {
    /// How what several workers say becomes one.
    pub combine: FederatedCombine,
    /// How many of those that are combined may lie (trimmed mean, Krum).
    pub liars: usize,
    /// The most that what one of them says may be long; 0 does not limit.
    pub clip: f64,
    /// The share of workers that lie, to see what becomes of it.
    pub byzantine: f64,
    /// How they lie.
    pub attack: FederatedAttack,
}

impl Sync {
    /// Whether what workers say is more than averaged, or may be a lie.
    pub fn is_guarded(&self) -> bool {
        let Robust { combine, clip, byzantine, .. } = &self.robust;
        *combine != FederatedCombine::Mean || *clip > 0.0 || *byzantine > 0.0
    }
}
