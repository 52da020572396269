//! Measures the overhead of checking signatures and recording every call.
//!
//! `guards [threads|tcp] [RANKS] [BYTES,BYTES,…]`: ranks run series of all-reduces, in turn with
//! and without both, in the same process and on the same buffers, so that noise affects both alike.
//! There are many short series: their medians are compared, and their fastest tenths, which are
//! undisturbed.
#![expect(clippy::print_stdout, reason = "an example prints its table")]

use std::error::Error;
use std::time::Duration;

use lockstep_comm::transport::tcp::{TcpOptions, TcpTransport};
use lockstep_comm::{Comm, Options, Reduction};
use lockstep_platform::{World, real};

/// Series of each kind.
const NUM_ROWS: usize = 300;

/// Target duration of one series.
const ROW: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize, default: &str| args.get(index).map_or(default, |x| x).to_owned();
    let (transport, num_ranks) = (word(0, "threads"), word(1, "2").parse()?);
    let sizes = word(2, "1024,4096,16384,65536,262144");
    let sizes: Vec<usize> = sizes.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let world = real();
    let ends = match transport.as_str() {
        "tcp" => TcpTransport::loopback(&world, num_ranks, 2, &TcpOptions::default())?
            .into_iter()
            .map(|channels| Comm::world(&world, TcpTransport::into_channels(channels)))
            .collect::<Result<_, _>>()?,
        _ => Comm::threads(&world, num_ranks, &Options::default())?,
    };
    println!(
        "{:>8} {:>10} {:>10} {:>7} {:>10} {:>10} {:>7}",
        "bytes", "bare us", "checked", "ratio", "bare p10", "checked", "ratio"
    );
    std::thread::scope(|scope| {
        for comm in ends {
            let (world, sizes) = (&world, &sizes);
            scope.spawn(move || sizes.iter().for_each(|&bytes| measure(world, &comm, bytes)));
        }
    });
    Ok(())
}

fn measure(world: &World, comm: &Comm, bytes: usize) {
    let mut buffer = comm.allocate::<f32>(bytes / 4).expect("the arena has room");
    let bare = comm.bare();
    let mut row = |comm: &Comm, num_calls: usize| {
        let start = world.clock().now();
        for _ in 0..num_calls {
            comm.all_reduce(&mut buffer, Reduction::Sum).expect("no rank fails");
        }
        world.clock().since(start).as_secs_f64() * 1e6 / num_calls as f64
    };
    // All ranks must make the same number of calls, so rank 0 broadcasts it.
    row(comm, 100);
    let mut num_calls = [(ROW.as_secs_f64() * 1e6 / row(comm, 200)) as u32];
    comm.broadcast(&mut num_calls, 0).expect("no rank fails");
    let num_calls = num_calls[0].clamp(5, 20_000) as usize;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for index in 0..NUM_ROWS {
        // Alternate the order, so that it has no effect.
        if index % 2 == 0 {
            without.push(row(&bare, num_calls));
            with.push(row(comm, num_calls));
        } else {
            with.push(row(comm, num_calls));
            without.push(row(&bare, num_calls));
        }
    }
    without.sort_by(f64::total_cmp);
    with.sort_by(f64::total_cmp);
    if comm.group_rank() == 0 {
        let (middle, tenth) = (NUM_ROWS / 2, NUM_ROWS / 10);
        println!(
            "{bytes:>8} {:>10.3} {:>10.3} {:>7.3} {:>10.3} {:>10.3} {:>7.3}",
            without[middle],
            with[middle],
            with[middle] / without[middle],
            without[tenth],
            with[tenth],
            with[tenth] / without[tenth],
        );
    }
}
