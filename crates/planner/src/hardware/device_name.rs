//! Devices by the names in use: any case, with the maker, with or without memory and form factor.
//!
//! `H100`, `h100-sxm`, `NVIDIA H100 80GB` and `h100_80gb` are one device. A name that several
//! devices share is the usual one of them where there is one, else an error with all of them.

use super::device::{DEVICES, Device};
use lockstep_config::nearest;
use std::fmt;

/// A name that is not the name of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNameError {
    /// The name.
    pub name: String,
    /// Devices that it may mean; none where no device is close.
    pub candidates: Vec<&'static str>,
    /// Whether each of several devices has the name, rather than a similar one.
    pub is_ambiguous: bool,
}

impl fmt::Display for DeviceNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_ambiguous { "is several devices" } else { "is not a known device" };
        write!(f, "{:?} {what}; ", self.name)?;
        if self.candidates.is_empty() {
            let all: Vec<&str> = DEVICES.iter().map(|device| device.name).collect();
            return write!(f, "try one of {}, or {OVERRIDE}", all.join(", "));
        }
        write!(f, "try {}", self.candidates.join(" or "))?;
        if self.is_ambiguous { Ok(()) } else { write!(f, ", or {OVERRIDE}") }
    }
}

impl std::error::Error for DeviceNameError {}

/// How to describe a device that is not known.
pub const OVERRIDE: &str = "a cluster file (TOML) with a similar device and its own memory_gb, \
     peak_tflops, memory_gbps and link_gbps";

/// Devices that a name without memory usually means.
const USUAL: [&str; 2] = ["a100-80gb", "h100-80gb"];

/// Words of a data sheet that do not tell devices apart.
const FILLERS: [&str; 18] = [
    "nvidia",
    "amd",
    "intel",
    "google",
    "habana",
    "cloud",
    "tesla",
    "instinct",
    "gpu",
    "tensor",
    "core",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "dgx",
    "geforce",
    "generation",
];

/// Form factors with fast links between the devices of a node.
const LINKED: [&str; 8] = ["sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hgx", "nvlink", "oam"];

/// Most candidates of a message.
const MAX_CANDIDATES: usize = 6;

/// The device with this name.
pub fn find(name: &str) -> Result<Device, DeviceNameError> {
    let lower = name.trim().to_lowercase();
    if let Some(device) = DEVICES.iter().find(|device| device.name == lower) {
        return Ok(*device);
    }
    let mut parts: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let is_pcie = parts.contains(&"pcie");
    let is_linked = parts.iter().any(|part| LINKED.contains(part));
    parts.retain(|part| *part != "pcie" && !LINKED.contains(part) && !FILLERS.contains(part));
    let joined = parts.concat().replace("gib", "gb");
    let fits = |device: &Device| {
        let has_pcie = device.name.ends_with("-pcie");
        !joined.is_empty() && is_name(device, &joined) && (!is_pcie || has_pcie)
    };
    let mut found: Vec<&Device> = DEVICES.iter().filter(|device| fits(device)).collect();
    // A10 is not a prefix of A100.
    if found.iter().any(|device| is_family(device, &joined)) {
        found.retain(|device| is_family(device, &joined));
    }
    // A PCIe variant is meant only where it is named.
    let others = found.iter().any(|device| !device.name.ends_with("-pcie"));
    if is_linked || (!is_pcie && others) {
        found.retain(|device| !device.name.ends_with("-pcie"));
    }
    let usual = found.iter().find(|device| USUAL.contains(&device.name));
    match (&found[..], usual) {
        ([only], _) => Ok(**only),
        (_, Some(usual)) => Ok(**usual),
        ([], None) => {
            let known = DEVICES.iter().map(|device| device.name);
            let candidates = nearest(&lower, known).into_iter().collect();
            Err(DeviceNameError { name: name.to_owned(), candidates, is_ambiguous: false })
        }
        (several, None) => {
            let names = several.iter().map(|device| device.name);
            let candidates = names.take(MAX_CANDIDATES).collect();
            Err(DeviceNameError { name: name.to_owned(), candidates, is_ambiguous: true })
        }
    }
}

/// Whether whole parts of a device's name are this one.
fn is_family(device: &Device, joined: &str) -> bool {
    let ends = device.name.match_indices('-').map(|(at, _)| at).chain([device.name.len()]);
    ends.into_iter().any(|end| device.name[..end].replace('-', "") == joined)
}

/// Whether a device's name begins with this one, or its last part is this one.
fn is_name(device: &Device, joined: &str) -> bool {
    let own = device.name.replace('-', "");
    let last = device.name.rsplit('-').next().is_some_and(|last| last == joined);
    own.starts_with(joined) || (last && !joined.ends_with("gb") && joined != "pcie")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_found_by_its_own_name_in_any_case() {
        for device in DEVICES {
            let spellings = [
                device.name.to_owned(),
                device.name.to_uppercase(),
                device.name.replace('-', "_"),
                device.name.replace('-', " "),
                device.name.replace('-', ""),
            ];
            for name in spellings {
                assert_eq!(find(&name).map(|found| found.name), Ok(device.name), "{name}");
            }
        }
    }

    #[test]
    fn short_names_and_names_of_data_sheets_are_found() {
        for (name, device) in [
            ("h100", "h100-80gb"),
            ("H100", "h100-80gb"),
            ("h100-sxm", "h100-80gb"),
            ("H100 SXM5 80GB", "h100-80gb"),
            ("NVIDIA H100 PCIe", "h100-80gb-pcie"),
            ("h100-96", "h100-96gb"),
            ("A100", "a100-80gb"),
            ("a100-40", "a100-40gb"),
            ("A100-SXM4-40GB", "a100-40gb"),
            ("a100-80g", "a100-80gb"),
            ("A100 80GB PCIe", "a100-80gb-pcie"),
            ("a800", "a800-80gb"),
            ("h200", "h200-141gb"),
            ("B200", "b200-180gb"),
            ("GB200", "gb200-186gb"),
            ("V100-16GB", "v100-16gb"),
            ("tesla v100 32GB", "v100-32gb"),
            ("MI300X", "mi300x-192gb"),
            ("amd instinct mi250", "mi250x-128gb"),
            ("tpu v4", "tpu-v4"),
            ("TPUv5p", "tpu-v5p"),
            ("v5p", "tpu-v5p"),
            ("Gaudi 2", "gaudi2-96gb"),
            ("epyc", "epyc-9654"),
            ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
            ("rtx4090", "rtx4090-24gb"),
            ("L40S", "l40s-48gb"),
            ("NVIDIA A10", "a10-24gb"),
            ("RTX 6000 Ada Generation", "rtx6000-ada-48gb"),
            ("MI325X", "mi325x-256gb"),
            ("GB300", "gb300-288gb"),
            ("v6e", "tpu-v6e"),
        ] {
            assert_eq!(find(name).map(|found| found.name), Ok(device), "{name}");
        }
    }

    #[test]
    fn an_ambiguous_name_lists_its_candidates() {
        let message = |name: &str| find(name).expect_err(name).to_string();
        assert_eq!(message("V100"), "\"V100\" is several devices; try v100-32gb or v100-16gb");
        assert_eq!(
            message("a100-pcie"),
            "\"a100-pcie\" is several devices; try a100-40gb-pcie or a100-80gb-pcie"
        );
        assert_eq!(message("tpu"), "\"tpu\" is several devices; try tpu-v4 or tpu-v5p or tpu-v6e");
        let close = message("a190-80gb");
        assert!(close.starts_with("\"a190-80gb\" is not a known device; try a100-80gb, or a "));
        assert!(close.contains("cluster file (TOML) with a similar device"), "{close}");
        for name in ["", "abacus", "80gb", "pcie", "nvidia"] {
            let error = find(name).expect_err(name);
            assert!(!error.is_ambiguous && error.candidates.is_empty(), "{error:?}");
            assert!(error.to_string().contains("try one of v100-32gb, "), "{error}");
        }
    }
}
