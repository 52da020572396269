//! Strong and weak scaling: a fixed batch on more devices, and a batch that grows with them.
//!
//! A curve of best layouts stops paying where doubling the devices gains less than half of the
//! ideal. The share of a step that does not shrink is Amdahl's serial fraction.

use super::search;
use crate::job::{Job, Workload};
use serde::Serialize;

/// A number of devices with its best layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Number of devices.
    pub devices: u64,
    /// Global batch in sequences.
    pub batch: u64,
    /// Best layout in short form.
    pub layout: String,
    /// Step time in seconds.
    pub step_seconds: f64,
    /// Throughput in sequences per second.
    pub sequences_per_second: f64,
    /// Throughput per device, relative to the first point.
    pub efficiency: f64,
}

/// A scaling curve and the point where it stops paying.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Points by ascending number of devices.
    pub points: Vec<Point>,
    /// Largest number of devices that still pays.
    pub pays_up_to: Option<u64>,
    /// Serial fraction of the first point's step (Amdahl 1967).
    pub serial_share: Option<f64>,
}

/// Smallest share of a doubling's ideal gain that pays.
const PAYS: f64 = 0.5;

/// Best layouts at a quarter to four times the devices, with a fixed batch or one that grows.
pub fn curve(workload: &Workload<'_>, grows: bool) -> Curve {
    let job = workload.job;
    let devices = job.cluster.devices;
    let mut points: Vec<Point> = Vec::new();
    for (times, over) in [(1, 4), (1, 2), (1, 1), (2, 1), (4, 1)] {
        if !(devices * times).is_multiple_of(over) || devices * times / over == 0 {
            continue;
        }
        let mut cluster = job.cluster.clone();
        cluster.devices = devices * times / over;
        let grown = (job.batch * times / over).max(1);
        let batch = if grows { grown } else { job.batch };
        let scaled = Workload { job: Job { cluster: &cluster, batch, ..job }, ..*workload };
        let Some(best) = search(&scaled, 1).best.into_iter().next() else { continue };
        let speed = batch as f64 / best.step.seconds;
        let each = speed / cluster.devices as f64;
        let first = points.first().map_or(each, |p| p.sequences_per_second / p.devices as f64);
        points.push(Point {
            devices: cluster.devices,
            batch,
            layout: best.layout.to_string(),
            step_seconds: best.step.seconds,
            sequences_per_second: speed,
            efficiency: each / first,
        });
    }
    let pays_up_to = pays_up_to(&points);
    let serial_share = if grows { None } else { serial_share(&points) };
    Curve { points, pays_up_to, serial_share }
}

fn pays_up_to(points: &[Point]) -> Option<u64> {
    let mut last = points.first()?.devices;
    for pair in points.windows(2) {
        let gain = pair[1].sequences_per_second / pair[0].sequences_per_second - 1.0;
        let due = pair[1].devices as f64 / pair[0].devices as f64 - 1.0;
        if gain < PAYS * due {
            break;
        }
        last = pair[1].devices;
    }
    Some(last)
}

/// Amdahl's law: on n times the devices a step takes s + (1 - s)/n.
fn serial_share(points: &[Point]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let more = last.devices as f64 / first.devices as f64;
    let ratio = last.step_seconds / first.step_seconds;
    (more > 1.0).then(|| ((ratio - 1.0 / more) / (1.0 - 1.0 / more)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(devices: u64, step_seconds: f64) -> Point {
        Point {
            devices,
            batch: 64,
            layout: String::new(),
            step_seconds,
            sequences_per_second: 64.0 / step_seconds,
            efficiency: 1.0,
        }
    }

    #[test]
    fn a_curve_stops_paying_where_a_doubling_brings_less_than_half() {
        let points = [point(8, 8.0), point(16, 4.4), point(32, 3.5), point(64, 3.4)];
        assert_eq!(pays_up_to(&points), Some(16));
        assert_eq!(pays_up_to(&[]), None);
    }

    #[test]
    fn amdahls_serial_fraction_is_recovered() {
        let step = |n: f64| 0.2 + 0.8 / n;
        let points = [point(8, step(1.0)), point(64, step(8.0))];
        assert!((serial_share(&points).expect("two points") - 0.2).abs() < 1e-12);
    }
}
