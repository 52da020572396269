//! `lockstep bench comm`: latency and bandwidth of collectives, relative to the memory limit.
//!
//! # Layout
//! - [`plan`]: arguments to checked cases
//! - [`ranks`]: the measuring threads or processes and their launcher
//! - [`report`]: results as JSON and text; [`plot`]: as SVG
//! - [`select`]: the selected algorithm against all others

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

/// Time collectives: latency, bus bandwidth and share of the memory limit
#[derive(clap::Args)]
#[command(after_help = "\
Every rank rewrites its buffer before every timed call, one call is timed at a time, and the slowest
rank counts. `limit` is the time in which the same ranks read two buffers of that size, add them and
write both. A result is `verified` when it equals the sum in canonical order on every rank (for
algorithms with another order: of whole numbers, whose sum does not depend on it).

Examples:
  lockstep bench comm                                        all-reduce between two processes
  lockstep bench comm --op all --ranks 4 --bytes 1MiB        every operation at one size
  lockstep bench comm --transport tcp --algorithm ring,rabenseifner --ranks 4
  lockstep bench comm --bytes 1KiB,4MiB --dtype bf16 --json > comm.json
  lockstep bench comm --svg comm.svg                         a plot of bandwidth over size
  lockstep bench comm --transport tcp --ranks 4 --explain    measured links and predicted costs
  lockstep bench comm --transport tcp --select               selected algorithm against all others
  lockstep bench comm --transport tcp --set emulate.latency_ms=1 --select")]
pub(crate) struct Arguments {
    /// Operations, separated by commas: all_reduce, reduce_scatter, all_gather, broadcast, reduce,
    /// scatter, gather, all_to_all, all_to_all_v, barrier, or all
    #[arg(long, default_value = "all_reduce")]
    op: String,
    /// Number of ranks
    #[arg(long, default_value = "2")]
    ranks: String,
    /// Sizes of the whole vector, separated by commas
    #[arg(long, default_value = "1KiB,16KiB,256KiB,1MiB,4MiB,16MiB,64MiB")]
    #[arg(allow_hyphen_values = true)]
    bytes: String,
    /// Element type: f32, f64, bf16, f16, i8 to i64, u8 to u64
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// threads (of this process), or processes over shm or tcp
    #[arg(long, default_value = "shm")]
    transport: String,
    /// auto, or algorithms separated by commas, as ring:2,rabenseifner
    #[arg(long, default_value = "auto")]
    algorithm: String,
    /// arena (shared memory) or private (default: arena, private over tcp)
    #[arg(long)]
    buffers: Option<String>,
    /// Seconds per size
    #[arg(long, default_value = "0.3", allow_hyphen_values = true)]
    seconds: String,
    /// Time the selected algorithm alternately with every other one
    #[arg(long)]
    select: bool,
    /// Print the measured links and the predicted time of every algorithm
    #[arg(long)]
    explain: bool,
    /// Emulate slower links with an `emulate` key; repeatable, needs tcp
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
    /// Plot bus bandwidth over size into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rendezvous name and rank of a process that the launcher started
    #[arg(long, hide = true, value_name = "NAME/RANK")]
    as_rank: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let plan = Plan::from_arguments(arguments, world)?;
    if let Some(rank_env) = &arguments.as_rank {
        return ranks::run_rank(rank_env, &plan, world);
    }
    let progress = Progress::new(&plan, arguments.json);
    let mut rows = Vec::new();
    let measured = ranks::launch(&plan, world, |row: Row| {
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
            text += &select::render_predictions(&rows);
        }
        output::text(&text)?;
    }
    let num_wrong = rows.iter().filter(|row| !row.verified).count();
    if num_wrong > 0 {
        return Err(Failure::bug(format!(
            "{num_wrong} of {} results are not verified",
            rows.len()
        )));
    }
    Ok(())
}
