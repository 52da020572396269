//! Accelerators by their data sheets: peaks, not achieved rates.
//!
//! Achieved rates are a device's calibration ([`crate::Calibration`]). Prices are the hourly rent
//! in large clouds around 2025, meant to be replaced: a cluster file ([`super::file`]) overrides
//! any figure, and describes a device that is not here by a similar one.

/// A device type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Name in cluster files.
    pub name: &'static str,
    /// Name of its calibration.
    pub calibration: &'static str,
    /// Memory in GB (10⁹ bytes as its maker counts, though often GiB).
    pub memory_gb: f64,
    /// Dense 16-bit matmul peak, TFLOP/s.
    pub peak_tflops: f64,
    /// Dense FP8 matmul peak, TFLOP/s; the 16-bit peak where FP8 is missing.
    pub peak_tflops_fp8: f64,
    /// Memory bandwidth, GB/s.
    pub memory_gbps: f64,
    /// Streaming multiprocessors (or their equivalent), which share the tiles of a matmul.
    pub num_multiprocessors: u64,
    /// Bandwidth to the other devices of the node in each direction, GB/s.
    pub link_gbps: f64,
    /// Devices of a usual node.
    pub per_node: u64,
    /// Bandwidth of its usual share of the node's NICs, GB/s.
    pub network_gbps: f64,
    /// Board power in watts.
    pub watts: f64,
    /// Rent in dollars per hour.
    pub dollars_per_hour: f64,
}

/// Columns of the table below, in order.
const fn device(
    (name, calibration): (&'static str, &'static str),
    [memory_gb, peak_tflops, peak_tflops_fp8, memory_gbps]: [f64; 4],
    num_multiprocessors: u64,
    [link_gbps, network_gbps]: [f64; 2],
    per_node: u64,
    [watts, dollars_per_hour]: [f64; 2],
) -> Device {
    Device {
        name,
        calibration,
        memory_gb,
        peak_tflops,
        peak_tflops_fp8,
        memory_gbps,
        num_multiprocessors,
        link_gbps,
        per_node,
        network_gbps,
        watts,
        dollars_per_hour,
    }
}

/// All devices.
#[rustfmt::skip]
pub const DEVICES: &[Device] = &[
    device(("v100-32gb", "v100"), [32.0, 125.0, 125.0, 900.0],
        80, [150.0, 12.5], 8, [300.0, 1.2]),
    device(("v100-16gb", "v100"), [16.0, 125.0, 125.0, 900.0],
        80, [150.0, 12.5], 8, [300.0, 0.9]),
    device(("a100-40gb", "a100"), [40.0, 312.0, 312.0, 1555.0],
        108, [300.0, 25.0], 8, [400.0, 1.5]),
    device(("a100-80gb", "a100"), [80.0, 312.0, 312.0, 2039.0],
        108, [300.0, 25.0], 8, [400.0, 2.0]),
    device(("a100-40gb-pcie", "a100"), [40.0, 312.0, 312.0, 1555.0],
        108, [32.0, 12.5], 8, [250.0, 1.2]),
    device(("a100-80gb-pcie", "a100"), [80.0, 312.0, 312.0, 1935.0],
        108, [32.0, 12.5], 8, [300.0, 1.6]),
    device(("a800-80gb", "a100"), [80.0, 312.0, 312.0, 2039.0],
        108, [200.0, 25.0], 8, [400.0, 1.6]),
    device(("h100-80gb", "h100"), [80.0, 989.0, 1979.0, 3350.0],
        132, [450.0, 50.0], 8, [700.0, 3.0]),
    device(("h100-96gb", "h100"), [96.0, 989.0, 1979.0, 2400.0],
        132, [450.0, 50.0], 8, [500.0, 3.0]),
    device(("h100-80gb-pcie", "h100"), [80.0, 756.0, 1513.0, 2000.0],
        114, [64.0, 25.0], 8, [350.0, 2.4]),
    device(("h200-141gb", "h100"), [141.0, 989.0, 1979.0, 4800.0],
        132, [450.0, 50.0], 8, [700.0, 3.5]),
    device(("h800-80gb", "h100"), [80.0, 989.0, 1979.0, 3350.0],
        132, [200.0, 50.0], 8, [700.0, 2.0]),
    device(("b200-180gb", "b200"), [180.0, 2250.0, 4500.0, 7700.0],
        148, [900.0, 50.0], 8, [1000.0, 5.0]),
    device(("gb200-186gb", "b200"), [186.0, 2500.0, 5000.0, 8000.0],
        148, [900.0, 50.0], 72, [1200.0, 6.0]),
    // NVIDIA, "GB300 NVL72" and "Inside NVIDIA Blackwell Ultra" (2025): 288 GB of HBM3e at 8 TB/s,
    // 160 multiprocessors, up to 1,400 W; 72 GPUs share NVLink, with 800 Gb/s of network each, and
    // have 360 PFLOP/s of dense FP8. Its rent is not published; the figure is GB200's and a sixth,
    // as its power.
    device(("gb300-288gb", "b200"), [288.0, 2500.0, 5000.0, 8000.0],
        160, [900.0, 100.0], 72, [1400.0, 7.0]),
    // NVIDIA data sheets of A10, L40S and RTX 6000 Ada, and the Ada architecture white paper
    // (v2.01) for RTX 4090: dense peaks with 32-bit accumulation, at which GeForce has half the
    // rate. Their links are PCIe 4.0 x16. Rents: median of six clouds in Modal, "How much does it
    // cost to run NVIDIA L40S GPUs in 2025"; of RTX 4090, RunPod's range of 0.34 to 0.60 $/h.
    device(("a10-24gb", "a100"), [24.0, 125.0, 125.0, 600.0],
        72, [32.0, 12.5], 4, [150.0, 0.6]),
    device(("l40s-48gb", "ada"), [48.0, 362.0, 733.0, 864.0],
        142, [32.0, 12.5], 8, [350.0, 1.75]),
    device(("rtx6000-ada-48gb", "ada"), [48.0, 364.2, 728.5, 960.0],
        142, [32.0, 12.5], 4, [300.0, 0.8]),
    device(("rtx4090-24gb", "ada"), [24.0, 165.2, 330.3, 1008.0],
        128, [32.0, 3.125], 8, [450.0, 0.5]),
    device(("mi250x-128gb", "mi300x"), [128.0, 383.0, 383.0, 3276.0],
        220, [200.0, 25.0], 4, [560.0, 1.8]),
    device(("mi300x-192gb", "mi300x"), [192.0, 1307.0, 2615.0, 5300.0],
        304, [448.0, 50.0], 8, [750.0, 2.5]),
    // AMD, "Instinct MI325X" data sheet (2024): MI300X's compute with 256 GB of HBM3E at 6 TB/s.
    device(("mi325x-256gb", "mi300x"), [256.0, 1307.4, 2614.9, 6000.0],
        304, [448.0, 50.0], 8, [1000.0, 3.0]),
    device(("tpu-v4", "tpu"), [32.0, 275.0, 275.0, 1228.0],
        8, [300.0, 300.0], 4, [192.0, 3.2]),
    device(("tpu-v5p", "tpu"), [95.0, 459.0, 459.0, 2765.0],
        8, [600.0, 600.0], 4, [350.0, 4.2]),
    // Google Cloud, "TPU v6e" (2024): 800 GB/s of links in both directions, 8 chips per host, two
    // matrix units of 256 x 256. Its power is not published; the figure is v5p's.
    device(("tpu-v6e", "tpu"), [32.0, 918.0, 918.0, 1638.0],
        2, [400.0, 400.0], 8, [350.0, 2.7]),
    device(("gaudi2-96gb", "mi300x"), [96.0, 432.0, 865.0, 2450.0],
        24, [262.0, 37.5], 8, [600.0, 1.3]),
    device(("epyc-9654", "cpu"), [768.0, 5.4, 5.4, 460.0],
        96, [64.0, 12.5], 2, [360.0, 1.0]),
    device(("xeon-8480", "cpu"), [512.0, 6.9, 6.9, 307.0],
        56, [64.0, 12.5], 2, [350.0, 1.0]),
];

impl Device {
    /// Device of exactly this name; [`find`](super::device_name::find) accepts others.
    pub fn named(name: &str) -> Option<Self> {
        DEVICES.iter().copied().find(|device| device.name == name)
    }

    /// Memory in bytes; vendors' gigabytes of memory are powers of two.
    pub fn memory_bytes(&self) -> f64 {
        self.memory_gb * f64::from(1_u32 << 30)
    }

    /// Share of the clock that a device keeps under load, where `full` watts keep all of it. Power
    /// grows with the clock and with the square of the voltage, on top of static power; the clock
    /// then falls about with the square root of the power.
    pub fn clock(&self, full: f64) -> f64 {
        if full > 0.0 { (self.watts / full).sqrt().min(1.0) } else { 1.0 }
    }

    /// 16-bit peak in FLOP/s.
    pub fn peak(&self) -> f64 {
        self.peak_tflops * 1e12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_less_power_is_slower_by_the_square_root() {
        let device = Device::named("h100-96gb").expect("it is one");
        assert!((device.clock(700.0) - (500.0_f64 / 700.0).sqrt()).abs() < 1e-12);
        assert!((device.clock(0.0) - 1.0).abs() < 1e-12 && device.clock(300.0) <= 1.0);
    }

    #[test]
    fn devices_have_unique_names_and_sane_peaks() {
        for (index, device) in DEVICES.iter().enumerate() {
            assert!(DEVICES[..index].iter().all(|other| other.name != device.name));
            assert!(device.peak_tflops_fp8 >= device.peak_tflops, "{}", device.name);
            assert!(device.link_gbps >= device.network_gbps, "{}", device.name);
            assert!(crate::Calibration::of(device.calibration).is_some(), "{}", device.name);
        }
    }

    #[test]
    fn consumer_and_recent_devices_have_the_figures_of_their_data_sheets() {
        for (name, memory_gb, peak_tflops, memory_gbps, watts) in [
            ("rtx4090-24gb", 24.0, 165.2, 1008.0, 450.0),
            ("l40s-48gb", 48.0, 362.0, 864.0, 350.0),
            ("a10-24gb", 24.0, 125.0, 600.0, 150.0),
            ("rtx6000-ada-48gb", 48.0, 364.2, 960.0, 300.0),
            ("mi325x-256gb", 256.0, 1307.4, 6000.0, 1000.0),
            ("gb300-288gb", 288.0, 2500.0, 8000.0, 1400.0),
            ("tpu-v6e", 32.0, 918.0, 1638.0, 350.0),
        ] {
            let device = Device::named(name).expect(name);
            let figures = [device.memory_gb, device.peak_tflops, device.memory_gbps, device.watts];
            let published = [memory_gb, peak_tflops, memory_gbps, watts];
            for (has, published) in figures.into_iter().zip(published) {
                assert!((has - published).abs() < 1e-9, "{name}: {has} for {published}");
            }
        }
    }

    #[test]
    fn peaks_of_ada_and_ampere_are_those_of_their_multiprocessors_at_boost() {
        // Dense 16-bit operations of a multiprocessor a clock, with 32-bit accumulation: 4 tensor
        // cores of 128 multiply-adds, half of that on GeForce (white papers of GA102 and AD102).
        for (name, boost_mhz, per_clock) in [
            ("rtx4090-24gb", 2520.0, 512.0),
            ("l40s-48gb", 2520.0, 1024.0),
            ("rtx6000-ada-48gb", 2505.0, 1024.0),
            ("a10-24gb", 1695.0, 1024.0),
        ] {
            let device = Device::named(name).expect(name);
            let peak = device.num_multiprocessors as f64 * per_clock * boost_mhz * 1e-6;
            assert!((device.peak_tflops / peak - 1.0).abs() < 0.015, "{name}: {peak}");
        }
    }
}
