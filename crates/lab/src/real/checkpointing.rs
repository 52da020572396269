//! Checkpoints and failures: work is sleeping, checkpoints are written, and failures come at the
//! times of the simulation, in scaled time. After one, the last checkpoint is read and work since
//! then is done again.

use super::{Point, Real};
use crate::failure::Failure;
use lockstep_platform::World;
use std::path::Path;
use std::time::Duration;

pub(super) const REAL: Real = Real {
    name: "checkpointing",
    column: "overhead",
    rows: None,
    params: &["write=500ms", "mtbf=10s", "failures=64"],
    sweep: "interval=1s,3s,8s",
    measure,
};

/// Runs that go on at the same time; their failures are independent, so together they are one.
const NUM_RUNS: usize = 16;

/// The limits of the card are for hours; a second of it is this much here.
const SCALE: f64 = 0.1;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
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
    let results: Vec<Result<(f64, f64), Failure>> = std::thread::scope(|scope| {
        let run = |index: usize| {
            let own: Vec<f64> = failures.iter().copied().skip(index).step_by(NUM_RUNS).collect();
            let path = folder.join(format!("{index}.checkpoint"));
            scope.spawn(move || live(point, &path, &own))
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

/// One run through its failures: seconds that passed, and seconds of work that were saved.
fn live(point: &Point<'_>, path: &Path, failures: &[f64]) -> Result<(f64, f64), Failure> {
    let (at, clock) = (point.at, point.world.clock());
    let scaled = |key: &str| at.number(key) * SCALE;
    let start = clock.now();
    let mut saved = 0_u64;
    point.world.files().write_atomic(path, &saved.to_le_bytes())?;
    for failure in failures {
        let mut left = failure * SCALE;
        // What it takes to come back counts, and so does failing meanwhile.
        if !spend(point.world, &mut left, scaled("restart")) {
            continue;
        }
        saved = read(point.world, path)?;
        loop {
            if !spend(point.world, &mut left, scaled("interval")) {
                break;
            }
            // A checkpoint that a failure interrupts was never there.
            if left < scaled("write") {
                let rest = left;
                spend(point.world, &mut left, rest);
                break;
            }
            let begun = clock.now();
            saved += 1;
            point.world.files().write_atomic(path, &saved.to_le_bytes())?;
            let rest = (scaled("write") - clock.since(begun).as_secs_f64()).max(0.0);
            left -= scaled("write") - rest;
            spend(point.world, &mut left, rest);
        }
    }
    let elapsed = clock.since(start).as_secs_f64();
    Ok((elapsed, read(point.world, path)? as f64 * scaled("interval")))
}

/// Sleeps, but not beyond the failure; whether it got through.
fn spend(world: &World, left: &mut f64, seconds: f64) -> bool {
    let slept = seconds.min(*left).max(0.0);
    world.clock().sleep(Duration::from_secs_f64(slept));
    *left -= slept;
    slept >= seconds
}

/// How many intervals the last checkpoint has.
fn read(world: &World, path: &Path) -> Result<u64, Failure> {
    let bytes = world.files().read(path)?;
    let bytes = bytes.try_into().map_err(|_| Failure::bug("a checkpoint of another length"))?;
    Ok(u64::from_le_bytes(bytes))
}
