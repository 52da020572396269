//! `lockstep bench train`: throughput of training steps and their share of the machine's peak; time
//! by operation of an accelerator.

use crate::automatic::{self, Purpose};
use crate::console;
use crate::failure::Failure;
use crate::output;
use crate::quantity::{digits, percent, si};
use crate::recipe_args::RecipeArguments;
use crate::workers::{self, LaunchOptions, RunDir, print_status};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_platform::World;
use lockstep_trainer::bench::{BenchSteps, bench_train};
use lockstep_trainer::operation_profile::{OperationProfile, OperationRow};
use lockstep_trainer::{TrainError, device};
use std::fmt::Write as _;

/// Steps whose operations `--by-operation` records.
const PROFILED_STEPS: u64 = 3;

/// Time training steps: tokens/s and share of the machine's peak FLOP/s
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench train                        6 layers x 384, context 256, batch 16
  lockstep bench train --set run.threads=1 --steps 5
  lockstep bench train my.toml --json
  lockstep bench train --steps 200 --spans    cost of the spans of tasks
  lockstep bench train --preset gpt2 --set run.device=cuda --by-operation")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Timed steps, after two warm-up steps
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Device time by operation in three more steps, beside its floor measured in the same call:
    /// products alone, bytes at the copy bandwidth. Needs an accelerator
    #[arg(long)]
    by_operation: bool,
    /// Also time pairs of steps, --steps many, of which one records the spans of its tasks
    #[arg(long)]
    spans: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if arguments.steps == 0 {
        return Err(Failure::user("--steps 0 measures nothing; try 10"));
    }
    let (recipe, settings) =
        arguments.recipe.resolve_for(Purpose::Run(None), world, Some("bench"))?;
    let profiled = if arguments.by_operation { PROFILED_STEPS } else { 0 };
    let span_pairs = if arguments.spans { arguments.steps } else { 0 };
    let steps = BenchSteps { timed: arguments.steps, profiled, span_pairs };
    let own_world = World::clone(world);
    let check = || {
        if profiled > 0 && device::accelerator(&recipe)?.is_none() {
            return Err(TrainError::NoAccelerator.into());
        }
        lockstep_trainer::check_inputs(&recipe, world)?;
        let Some(settings) = &settings else { return Ok(LaunchOptions::default()) };
        print_status(&console::wrap_status(world, &settings.to_string()));
        Ok(LaunchOptions { env: automatic::to_env(&recipe), ..LaunchOptions::default() })
    };
    let work = move |recipe: &Recipe, comm: &Comm| bench_train(recipe, &own_world, comm, steps);
    let Some(bench) = workers::run(&recipe, world, true, &RunDir::default(), check, work)? else {
        return Ok(());
    };
    if arguments.json {
        return output::json(&bench);
    }
    let device = bench.device_bytes.map(|bytes| format!("on device {}\n", Bytes(bytes)));
    output::text(&format!(
        "{} tokens/s, median step {}, {} threads, {} kernels\n\
         {} of {} GFLOP/s peak ({})\n\
         peak memory {}\n{}",
        digits(bench.tokens_per_second),
        Seconds(bench.step_seconds_median),
        bench.threads,
        bench.kernels,
        digits(bench.gflops),
        digits(bench.fma_peak_gflops),
        percent(bench.peak_share),
        Bytes(bench.peak_rss_bytes),
        device.unwrap_or_default(),
    ))?;
    if let Some(spans) = &bench.spans {
        output::text(&format!(
            "recording {} spans: a step takes {:.4} times as long ({} instead of {}, medians)\n",
            spans.spans_per_step,
            spans.ratio_median,
            Seconds(spans.sampled_step_seconds_median),
            Seconds(spans.plain_step_seconds_median),
        ))?;
    }
    bench.by_operation.map_or(Ok(()), |profile| output::text(&render_profile(&profile)))
}

/// The table of operations, and the floor.
fn render_profile(profile: &OperationProfile) -> String {
    let names = profile.operations.iter().map(|row| row.name.len());
    let width = names.max().unwrap_or_default().max("operation".len());
    let mut text = format!(
        "\n{:width$} {:>7} {:>9} {:>7} {:>12} {:>9}\n",
        "operation", "calls", "ms/step", "share", "rate", "floor ms"
    );
    let ms = |seconds: f64| digits(1e3 * seconds);
    for row in &profile.operations {
        let OperationRow { name, calls, seconds, share, .. } = row;
        let rate = match (row.flops_per_second, row.bytes_per_second) {
            (Some(flops), _) => si(flops, "FLOP/s"),
            (None, Some(bytes)) => si(bytes, "B/s"),
            (None, None) => String::new(),
        };
        let floor = row.floor_seconds.map_or(String::new(), ms);
        let line = format!(
            "{name:width$} {:>7} {:>9} {:>7} {rate:>12} {floor:>9}",
            if calls.fract() == 0.0 { calls.to_string() } else { digits(*calls) },
            ms(*seconds),
            percent(*share),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(
        text,
        "\nfloor: products {} ms of {} ms alone, back to back; copies inside the device {}\n\
         measured step {} ms, sum of operations {} ms, gaps {} ms",
        ms(profile.products_floor_seconds),
        ms(profile.products_seconds),
        si(profile.copy_bytes_per_second, "B/s"),
        ms(profile.step_seconds),
        ms(profile.operations_seconds),
        ms(profile.gap_seconds),
    );
    for (index, gap) in profile.largest_gaps.iter().enumerate() {
        let start = if index == 0 { "largest gaps:" } else { "" };
        let _ = writeln!(text, "{start:13} {} {} ms, {}", gap.name, ms(gap.seconds), gap.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_trainer::operation_profile::Gap;

    #[test]
    fn a_profile_is_a_table_with_floors_and_a_line_of_sums() {
        let row = |name: &str, calls, seconds, flops_per_second, floor_seconds| OperationRow {
            name: name.to_owned(),
            calls,
            seconds,
            share: seconds / 5e-3,
            flops_per_second,
            bytes_per_second: None,
            floor_seconds,
        };
        let product = "product 768x2304x65536 tn bf16 to f32 +=";
        let profile = OperationProfile {
            steps: 3,
            step_seconds: 6.25e-3,
            operations_seconds: 5e-3,
            gap_seconds: 1.25e-3,
            products_seconds: 4e-3,
            products_floor_seconds: 3.9e-3,
            copy_bytes_per_second: 4.31e12,
            operations: vec![
                row(product, 12.0, 4e-3, Some(7.09e14), Some(3.9e-3)),
                row("gelu bf16", 12.0, 1e-3, None, None),
            ],
            largest_gaps: [("between operations", 1.25e-3, "waits"), (product, 1e-4, "cold")]
                .map(|(name, seconds, reason)| Gap {
                    name: name.to_owned(),
                    seconds,
                    reason: reason.to_owned(),
                })
                .to_vec(),
        };
        assert_eq!(
            render_profile(&profile),
            "
operation                                  calls   ms/step   share         rate  floor ms
product 768x2304x65536 tn bf16 to f32 +=      12      4.00  80.0 %  709 TFLOP/s      3.90
gelu bf16                                     12      1.00  20.0 %

floor: products 3.90 ms of 4.00 ms alone, back to back; copies inside the device 4.31 TB/s
measured step 6.25 ms, sum of operations 5.00 ms, gaps 1.25 ms
largest gaps: between operations 1.25 ms, waits
              product 768x2304x65536 tn bf16 to f32 += 0.100 ms, cold
"
        );
    }
}
