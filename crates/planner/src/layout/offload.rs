//! Offloading of model states: ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840) and ZeRO-Infinity
//! (Rajbhandari et al. 2021, arXiv:2104.07857).
//!
//! ZeRO-Offload keeps weights on the device; gradients leave it during the backward pass, and the
//! host updates the optimizer state in its own memory. ZeRO-Infinity moves the weights too, which
//! return layer by layer, and may keep everything on NVMe drives.

use std::fmt;

/// Model states outside device memory; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffloadedStates {
    /// None: everything is on the device.
    Nothing,
    /// Master weights and moments.
    Optimizer,
    /// Gradients as well.
    Gradients,
    /// Weights as well.
    Weights,
}

/// Storage of offloaded states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadTier {
    /// Memory of the host.
    Host,
    /// NVMe drives of the host.
    Nvme,
}

/// Offloaded model states and their storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload {
    /// States that leave the device.
    pub states: OffloadedStates,
    /// Their storage.
    pub tier: OffloadTier,
}

/// Values of the layout key, by name.
const NAMES: [(&str, Offload); 6] = [
    ("optimizer", Offload::to_host(OffloadedStates::Optimizer)),
    ("gradients", Offload::to_host(OffloadedStates::Gradients)),
    ("parameters", Offload::to_host(OffloadedStates::Weights)),
    ("optimizer-nvme", Offload::to_nvme(OffloadedStates::Optimizer)),
    ("gradients-nvme", Offload::to_nvme(OffloadedStates::Gradients)),
    ("parameters-nvme", Offload::to_nvme(OffloadedStates::Weights)),
];

impl Offload {
    /// Everything on the device.
    pub const NONE: Self = Self::to_host(OffloadedStates::Nothing);

    /// ZeRO-Offload: gradients and optimizer state in host memory.
    pub const ZERO_OFFLOAD: Self = Self::to_host(OffloadedStates::Gradients);

    /// States in host memory.
    pub const fn to_host(states: OffloadedStates) -> Self {
        Self { states, tier: OffloadTier::Host }
    }

    /// States on NVMe drives.
    pub const fn to_nvme(states: OffloadedStates) -> Self {
        Self { states, tier: OffloadTier::Nvme }
    }

    /// Whether anything is offloaded.
    pub fn is_on(self) -> bool {
        self.has(OffloadedStates::Optimizer)
    }

    /// Whether these states are offloaded.
    pub fn has(self, states: OffloadedStates) -> bool {
        self.states >= states
    }

    /// Reads the value of a layout's key; `true` is ZeRO-Offload.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, offload)| *offload);
        match text {
            "true" => Ok(Self::ZERO_OFFLOAD),
            "false" => Ok(Self::NONE),
            _ => named.ok_or_else(|| {
                let names = NAMES.map(|(name, _)| name).join(", ");
                format!("is not known; try true (gradients and optimizer), or one of {names}")
            }),
        }
    }
}

impl fmt::Display for Offload {
    /// `offload` for ZeRO-Offload, `offload-parameters-nvme` for others, nothing where it is off.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, offload)| offload == self) {
            None => Ok(()),
            Some(_) if *self == Self::ZERO_OFFLOAD => f.write_str("offload"),
            Some((name, _)) => write!(f, "offload-{name}"),
        }
    }
}
