//! `lockstep bench comm`: how fast ranks exchange data here, beside the best memory could do.
//!
//! # Layout
//! - [`plan`]: what was asked for, proven before anything starts.
//! - [`ranks`]: threads or processes that measure, and the one that waits for them.
//! - [`report`]: the figures, for programs and for people.
//! - [`plot`]: the figures as a picture.
//! - [`select`]: the library's choice beside what it could have chosen.

mod plan;
mod plot;
mod ranks;
mod report;
mod select;

use crate::failure::Failure;
use crate::output;
use lockstep_platform::World;
use plan::Plan;
use report::{Progress, Row};
use std::path::PathBuf;

/// Time collectives between ranks; says which share of the memory limit they reach
#[derive(clap::Args)]
#[command(after_help = "\
Every rank rewrites its buffer before every timed call, one call is timed at a time, and the slowest
rank counts. `limit` is the time in which the same ranks sweep over two buffers of that size in
memory: read both, add, write both. A result is `verified` when it equals, on every rank, the sum
in the canonical order (where the algorithm promises another order: of whole numbers, which have
one sum in any order).

Examples:
  lockstep bench comm                                        all-reduce between two processes
  lockstep bench comm --op all --ranks 4 --bytes 1MiB        every operation on one size
  lockstep bench comm --transport tcp --algorithm ring,rabenseifner --ranks 4
  lockstep bench comm --bytes 1KiB,4MiB --dtype bf16 --json > comm.json
  lockstep bench comm --svg comm.svg                         a plot of bandwidth over size
  lockstep bench comm --transport tcp --ranks 4 --explain    the links, and what each choice costs
  lockstep bench comm --transport tcp --select               the choice against all others
  lockstep bench comm --transport tcp --set emulate.latency_ms=1 --select")]
pub(crate) struct Arguments {
    /// Operations, with commas between: all_reduce, reduce_scatter, all_gather, broadcast, reduce,
    /// scatter, gather, all_to_all, all_to_all_v, barrier, or all
    #[arg(long, default_value = "all_reduce")]
    op: String,
    /// How many ranks take part
    #[arg(long, default_value = "2")]
    ranks: String,
    /// Sizes, with commas between; of the whole vector, as other libraries' benchmarks count
    #[arg(long, default_value = "1KiB,16KiB,256KiB,1MiB,4MiB,16MiB,64MiB")]
    #[arg(allow_hyphen_values = true)]
    bytes: String,
    /// Type of the elements: f32, f64, bf16, f16, i8 to i64, u8 to u64
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// threads of this process, or processes over shm or tcp
    #[arg(long, default_value = "shm")]
    transport: String,
    /// auto, or algorithms with commas between, such as ring:2,rabenseifner
    #[arg(long, default_value = "auto")]
    algorithm: String,
    /// arena (memory that the ranks share) or private; without it arena, and private over tcp
    #[arg(long)]
    buffers: Option<String>,
    /// Time for the calls of each size
    #[arg(long, default_value = "0.3", allow_hyphen_values = true)]
    seconds: String,
    /// Measure the algorithm that is chosen in turn with every one that could have been
    #[arg(long)]
    select: bool,
    /// Say what was found out about the links, and what every algorithm would take by that
    #[arg(long)]
    explain: bool,
    /// Make links worse than they are, by a key of `emulate`; may be repeated, needs tcp
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
    /// Draw bus bandwidth over size into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Be one of the ranks that another process has started: where it is met, and the rank
    #[arg(long, hide = true, value_name = "NAME/RANK")]
    as_rank: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let plan = Plan::prove(arguments, world)?;
    if let Some(place) = &arguments.as_rank {
        return ranks::be_one(place, &plan, world);
    }
    let progress = Progress::new(&plan, arguments.json);
    let mut rows = Vec::new();
    let measured = ranks::start(&plan, world, |row: Row| {
        rows.push(row);
        progress.show(rows.len());
    });
    progress.end();
    measured?;
    if let Some(path) = &arguments.svg {
        world.files().write_atomic(path, plot::draw(&rows).as_bytes())?;
    }
    if arguments.json {
        output::json(&rows)?;
    } else {
        let table = if plan.selects { select::table } else { report::table };
        let mut text = table(&plan, &rows);
        if plan.explains {
            text += &select::explanation(&rows);
        }
        output::text(&text)?;
    }
    let num_wrong = rows.iter().filter(|row| !row.verified).count();
    if num_wrong > 0 {
        return Err(Failure::bug(format!("{num_wrong} of {} results are wrong", rows.len())));
    }
    Ok(())
}
