//! All-reduces a vector on four ranks: `cargo run --release --example all_reduce`.
//!
//! The ranks are threads here. With processes only the first step differs: each process calls
//! `Comm::processes` with its rank and a job name.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use lockstep_comm::{Comm, CommError, Options, Reduction};

fn main() -> Result<(), CommError> {
    let world = lockstep_platform::real();
    let ends = Comm::threads(&world, 4, &Options::default())?;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = ends.iter().map(|comm| scope.spawn(|| rank_main(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Vec<_>>()
    });
    for (rank, result) in results.into_iter().enumerate() {
        println!("rank {rank}: {}", result?);
    }
    Ok(())
}

/// Body of one rank.
fn rank_main(comm: &Comm) -> Result<String, CommError> {
    // Shared memory: the other ranks access it without copies.
    let mut gradient = comm.allocate::<f32>(1_000_000)?;
    gradient.fill(comm.group_rank() as f32);

    // Every rank makes the call, and every rank gets the mean.
    comm.all_reduce(&mut gradient, Reduction::Mean)?;
    let mean = gradient[0];

    // In the background: the buffer moves into the call and returns with the result.
    let handle = comm.start_all_reduce(gradient, Reduction::Sum)?;
    let summed = handle.finish()?;

    let moved = comm.counters().total().traffic;
    Ok(format!(
        "mean {mean}, sum of means {}, read {} and wrote {} bytes of other ranks' memory",
        summed[0], moved.read_bytes, moved.written_bytes
    ))
}
