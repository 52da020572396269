//! Times all-reduces of fresh data between processes, beside the bound by memory bandwidth.
//!
//! `fresh RANKS BYTES,BYTES,… [ALGORITHM]`: every rank rewrites its buffer, as a backward pass
//! would, all start together, one call is timed, and the slowest rank counts. The bound is the same
//! reduction pass without synchronization: each rank adds its part of all buffers and stores the
//! sum to all. `taskset` pins the ranks to cores.
#![expect(clippy::print_stdout, reason = "an example prints its table")]
#![expect(unsafe_code, reason = "the sweep writes to the buffers of other ranks")]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use lockstep_comm::limit::Sweep;
use lockstep_comm::{ArenaBuffer, Comm, CommError, Options, Reduction};
use lockstep_mesh::Rank;
use lockstep_platform::World;
use lockstep_schedule::Algorithm;

/// Environment variable with the job and rank of a process.
const PLACE: &str = "FRESH_PLACE";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, num_ranks, sizes, algorithm @ ..] = args.as_slice() else {
        return Err("usage: fresh RANKS BYTES,BYTES,… [ALGORITHM]".into());
    };
    let num_ranks: usize = num_ranks.parse()?;
    let world = lockstep_platform::real();
    let Some(place) = world.host().env(PLACE) else {
        return start_ranks(&args[1..], num_ranks, world.threads().available());
    };
    let (job, rank) = place.split_once('/').ok_or("expected a job and a rank")?;
    let mut comm =
        Comm::processes(&world, job, Rank(rank.parse()?), num_ranks, &Options::default())?;
    if let [algorithm] = algorithm {
        comm = comm.using(algorithm.parse()?);
    }
    for size in sizes.split(',') {
        measure(&world, &comm, size.parse()?)?;
    }
    Ok(())
}

fn start_ranks(args: &[String], num_ranks: usize, num_cores: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "{:>10} {:>11} {:>11} {:>11} {:>6}",
        "bytes", "median us", "p10 us", "limit us", "ratio"
    );
    let job = std::process::id();
    let mut ranks = Vec::new();
    for rank in 0..num_ranks {
        let mut command = Command::new("taskset");
        command.args(["-c", &(rank % num_cores).to_string()]);
        command.arg(std::env::current_exe()?).args(args).env(PLACE, format!("{job}/{rank}"));
        ranks.push(command.spawn()?);
    }
    for mut rank in ranks {
        if !rank.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

fn measure(world: &World, comm: &Comm, bytes: usize) -> Result<(), CommError> {
    let n = comm.group_size();
    let mut buffer = comm.allocate::<f32>(bytes / 4)?;
    for (index, x) in buffer.iter_mut().enumerate() {
        *x = (index % 7 + comm.group_rank() + 1) as f32;
    }
    comm.all_reduce(&mut buffer, Reduction::Sum)?;
    for (index, x) in buffer.iter().enumerate() {
        let expected = (n * (index % 7) + n * (n + 1) / 2) as f32;
        assert!((x - expected).abs() < 0.5, "element {index} is {x}, not {expected}");
    }
    let sweep = Sweep::prepare(&comm.using(Algorithm::Direct), &buffer)?;
    let num_samples = (400_000_000 / (bytes + 20_000)).clamp(10, 2000);
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..num_samples {
        let call = |data: &mut ArenaBuffer<f32>| comm.all_reduce(data, Reduction::Sum);
        ours.push(timed(world, &sweep, &mut buffer, call)?);
        let count = buffer.len();
        let alone = |_: &mut ArenaBuffer<f32>| {
            // SAFETY: all ranks are in this closure and have no slice of their buffers.
            unsafe { sweep.run::<f32>(count) };
            Ok(())
        };
        limit.push(timed(world, &sweep, &mut buffer, alone)?);
    }
    let (ours, limit) = (slowest(comm, &ours)?, slowest(comm, &limit)?);
    if comm.group_rank() == 0 {
        let at = |times: &[f64], percent: usize| times[times.len() * percent / 100];
        let (median, tenth, best) = (at(&ours, 50), at(&ours, 10), at(&limit, 50));
        println!("{bytes:>10} {median:>11.2} {tenth:>11.2} {best:>11.2} {:>6.2}", median / best);
    }
    Ok(())
}

fn timed(
    world: &World,
    sweep: &Sweep,
    buffer: &mut ArenaBuffer<f32>,
    run: impl FnOnce(&mut ArenaBuffer<f32>) -> Result<(), CommError>,
) -> Result<Duration, CommError> {
    buffer.fill(0.0);
    sweep.start_together();
    let start = world.clock().now();
    run(buffer)?;
    Ok(world.clock().since(start))
}

/// The time of the slowest rank of each sample, sorted, in microseconds.
fn slowest(comm: &Comm, times: &[Duration]) -> Result<Vec<f64>, CommError> {
    let mut micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    comm.all_reduce(&mut micros, Reduction::Max)?;
    micros.sort_by(f64::total_cmp);
    Ok(micros)
}
