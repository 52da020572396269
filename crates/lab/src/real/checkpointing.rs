//! Checkpointing under failures, in scaled time.
//!
//! Compute is a sleep, checkpoints are files, and failures happen at the times of the simulation.
//! After a failure the run reads its last checkpoint and repeats the lost work.

use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_platform::World;
use std::path::Path;
use std::time::Duration;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "checkpointing",
    column: "overhead",
    row_column: None,
    params: &["write=500ms", "mtbf=10s", "failures=64"],
    sweep: "interval=1s,3s,8s",
    measure,
};

/// Concurrent runs that share the failures; failures are independent, so their sum is one run.
const NUM_RUNS: usize = 16;

/// Wall-clock seconds per second of the parameters, whose limits are meant for hours.
const SCALE: f64 = 0.1;

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let mut random = point.random();
    let failures: Vec<f64> =
        (0..at.count("failures")).map(|_| random.exponential(at.number("mtbf"))).collect();
    let folder = point
        .world
        .host()
        .temp_dir()
        .join(format!("lockstep-lab-{:016x}", point.world.entropy().u64()));
    point.world.files().create_dir_all(&folder)?;
    let results: Vec<Result<(f64, f64), LabError>> = std::thread::scope(|scope| {
        let run = |index: usize| {
            let own: Vec<f64> = failures.iter().copied().skip(index).step_by(NUM_RUNS).collect();
            let path = folder.join(format!("{index}.checkpoint"));
            scope.spawn(move || run_through_failures(point, &path, &own))
        };
        let threads: Vec<_> = (0..NUM_RUNS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no run panics")).collect()
    });
    point.world.files().remove_dir_all(&folder)?;
    let (mut elapsed, mut useful) = (0.0, 0.0);
    for result in results {
        let (own_elapsed, own_useful) = result?;
        elapsed += own_elapsed;
        useful += own_useful;
    }
    Ok(elapsed / useful - 1.0)
}

/// One run with its failures; returns elapsed seconds and seconds of checkpointed work.
fn run_through_failures(
    point: &Point<'_>,
    path: &Path,
    failures: &[f64],
) -> Result<(f64, f64), LabError> {
    let (at, clock) = (point.at, point.world.clock());
    let scaled = |key: &str| at.number(key) * SCALE;
    let start = clock.now();
    let mut saved = 0_u64;
    point.world.files().write_atomic(path, &saved.to_le_bytes())?;
    for failure in failures {
        let mut left = failure * SCALE;
        // A failure may also interrupt the restart.
        if !spend(point.world, &mut left, scaled("restart")) {
            continue;
        }
        saved = read(point.world, path)?;
        loop {
            if !spend(point.world, &mut left, scaled("interval")) {
                break;
            }
            // An interrupted checkpoint is lost.
            if left < scaled("write") {
                let rest = left;
                spend(point.world, &mut left, rest);
                break;
            }
            let write_start = clock.now();
            saved += 1;
            point.world.files().write_atomic(path, &saved.to_le_bytes())?;
            let rest = (scaled("write") - clock.since(write_start).as_secs_f64()).max(0.0);
            left -= scaled("write") - rest;
            spend(point.world, &mut left, rest);
        }
    }
    let elapsed = clock.since(start).as_secs_f64();
    Ok((elapsed, read(point.world, path)? as f64 * scaled("interval")))
}

/// Sleeps until done or until the failure; returns whether it completed.
fn spend(world: &World, left: &mut f64, seconds: f64) -> bool {
    let slept = seconds.min(*left).max(0.0);
    world.clock().sleep(Duration::from_secs_f64(slept));
    *left -= slept;
    slept >= seconds
}

/// Number of intervals in the last checkpoint.
fn read(world: &World, path: &Path) -> Result<u64, LabError> {
    let bytes = world.files().read(path)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("checkpoints have eight bytes")))
}
