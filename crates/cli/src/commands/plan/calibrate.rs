//! `lockstep plan calibrate`: measures this machine, so that plans can predict step time.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::workers::print_status;
use crate::{calibration_file, output};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::units::Seconds;
use lockstep_config::{CompressMethod, DeviceChoice, Dtype, Recipe, Sources, resolve};
use lockstep_model::describe;
use lockstep_planner::calibration::machine::VERSION;
use lockstep_planner::calibration::machine::{CompressorTime, Format, Machine, Point, SumPoint};
use lockstep_planner::calibration::machine_fit::{MicrobatchTime, TimedSteps, WidthFit};
use lockstep_planner::time::microbatch_scores;
use lockstep_planner::traffic::{Call, Interconnect, Lengths, SelectedSchedules};
use lockstep_platform::World;
use lockstep_schedule::{Contributions, Op};
use lockstep_tensor::reduce;
use lockstep_trainer::bench::{
    BenchSteps, BenchTrain, bench_train, decode_seconds, tile_peak_gflops,
};
use lockstep_trainer::device;
use std::path::PathBuf;

/// Measure this machine, so that `plan` and `train` predict step time
#[derive(clap::Args)]
#[command(after_help = "\
Trains small models of several widths for a few steps in every number format and with every method
of gradient compression, and times collectives between two workers. Takes about a minute per format;
run it while the machine is idle.
The result is written to the user's cache folder, one file for each device, or to the file that
LOCKSTEP_CALIBRATION names.

Examples:
  lockstep plan calibrate
  lockstep plan calibrate --formats f32,bf16,fp16
  lockstep plan calibrate --device cuda
  lockstep plan calibrate --json
  lockstep plan calibrate runs.csv --out constants    device types, from tables of runs

With tables of runs (see `plan validate`) nothing is measured: the constants of every device type
are fitted to the rows and written to one file each, for `plan --calibration`.")]
pub(crate) struct Arguments {
    /// Tables of runs to fit device types to, instead of measuring this machine
    #[arg(requires = "out")]
    runs: Vec<PathBuf>,
    /// Folder for the calibration of every device type
    #[arg(long, value_name = "FOLDER", requires = "runs")]
    out: Option<PathBuf>,
    /// Timed steps per model
    #[arg(long, default_value_t = 6)]
    steps: u64,
    /// Number formats of matrix products (precision.compute) to measure
    #[arg(long, value_delimiter = ',', default_values = ["f32", "bf16"], value_name = "FORMAT,..")]
    formats: Vec<String>,
    /// Device to measure: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device_choice)]
    device: DeviceChoice,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Widths and heads of the models.
const WIDTHS: [(usize, usize); 6] = [(32, 2), (64, 2), (128, 4), (256, 4), (512, 8), (768, 12)];

/// Further widths on an accelerator, which narrow models do not fill.
const DEVICE_WIDTHS: [(usize, usize); 3] = [(1024, 8), (2048, 16), (4096, 32)];

/// Micro-batches of the shorter and the longer step of every model; both have one optimizer update.
const MICROBATCHES: [usize; 2] = [1, 4];

/// Heads of two models with equal FLOPs.
const HEADS: [usize; 2] = [2, 8];

/// Elements of the timed sums: from the L1 cache to main memory.
const SUMS: [usize; 6] = [1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23];

/// Micro-batches of short sequences, whose time is overhead per block.
const SHORT_MICROBATCHES: [usize; 2] = [1, 33];

/// A timed configuration: a model of two layers, micro-batches of two sequences.
#[derive(Clone, Copy)]
struct Trial {
    width: usize,
    heads: usize,
    context: usize,
    microbatches: usize,
    /// Reduction leaves, at most one per micro-batch.
    leaves: usize,
    /// Number format of matrix products.
    compute: Dtype,
    /// Compute threads; 0 is one per core.
    threads: usize,
    /// Device of the model.
    device: DeviceChoice,
}

/// Default sequence length.
const CONTEXT: usize = 256;

/// Default configuration.
const TRIAL: Trial = Trial {
    width: WIDTHS[0].0,
    heads: WIDTHS[0].1,
    context: CONTEXT,
    microbatches: 1,
    leaves: 1,
    compute: Dtype::F32,
    threads: 0,
    device: DeviceChoice::Cpu,
};

/// Elements of a latency-bound and of a bandwidth-bound all-reduce.
const CALLS: [usize; 2] = [16, 1 << 20];

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if let Some(folder) = &arguments.out {
        return super::validate::calibrate(&arguments.runs, folder, world);
    }
    if arguments.steps == 0 {
        return Err(Failure::user("--steps 0 measures nothing; try 6"));
    }
    let chosen = recipe(Trial { device: arguments.device, ..TRIAL });
    let accelerator = device::accelerator(&chosen)?.map(|accelerator| accelerator.name);
    let Some(path) = calibration_file::path(world, accelerator.as_deref()) else {
        return Err(Failure::user(
            "there is no home folder for the result; name a file in LOCKSTEP_CALIBRATION",
        ));
    };
    let formats = formats(&arguments.formats)?;
    let found = calibrate(world, arguments.steps, &formats, (arguments.device, accelerator))?;
    if let Some(folder) = path.parent() {
        world.files().create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&found).expect("our values are JSON") + "\n";
    world.files().write_atomic(&path, text.as_bytes())?;
    if arguments.json {
        return output::json(&found);
    }
    let tables: Vec<String> = found.formats.iter().map(table).collect();
    output::text(&format!("{}\nwritten to {}\n", tables.join("\n"), path.display()))
}

/// Number formats by name, each once.
fn formats(names: &[String]) -> Result<Vec<Dtype>, Failure> {
    let mut formats = Vec::new();
    for name in names {
        let Some(format) = Dtype::from_name(name) else {
            let known = Dtype::NAMES.join(", ");
            return Err(Failure::user(format!("--formats {name} is not known; try {known}")));
        };
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Ok(formats)
}

fn table(format: &Format) -> String {
    let speed =
        |point: &Point| format!("{:>5}  {:.1} GFLOP/s", point.width, point.flops_per_second / 1e9);
    let speeds: Vec<String> = format.points.iter().map(speed).collect();
    format!(
        "width  speed in {}\n{}\noverhead {} per block, {} on one thread\n",
        format.compute,
        speeds.join("\n"),
        Seconds(format.block_seconds),
        Seconds(format.block_seconds_alone),
    )
}

/// Measures everything.
fn calibrate(
    world: &World,
    steps: u64,
    formats: &[Dtype],
    (device, accelerator): (DeviceChoice, Option<String>),
) -> Result<Machine, Failure> {
    let mut measured = Vec::new();
    for compute in formats {
        measured.push(measure_format(world, steps, *compute, device)?);
    }
    print_status("sums ...\n");
    let (sums, serial_sums) = (sums(world, 0)?, sums(world, 1)?);
    let compressors = compressors(world, steps)?;
    print_status("all-reduce between workers ...\n");
    let [latency_factor, transfer_factor] = factors(world)?;
    // The optimizer update is the same in all formats.
    let first = &measured[0];
    Ok(Machine {
        version: VERSION,
        host: world.host().name(),
        cores: world.threads().available(),
        kernels: first.kernels.clone(),
        accelerator,
        update_seconds_per_param: first.update_seconds_per_param,
        step_overhead_seconds: first.step_overhead_seconds,
        formats: measured.into_iter().map(|measured| measured.format).collect(),
        sums,
        serial_sums,
        compressors,
        latency_factor,
        transfer_factor,
    })
}

/// Measurements in one number format.
struct Measured {
    format: Format,
    update_seconds_per_param: f64,
    step_overhead_seconds: f64,
    kernels: String,
}

fn measure_format(
    world: &World,
    steps: u64,
    compute: Dtype,
    device: DeviceChoice,
) -> Result<Measured, Failure> {
    // Steps of narrow models are short, so more of them are timed.
    let num_steps = |trial: &Trial| if trial.width <= 128 { 8 * steps } else { steps };
    let bench = |trial: Trial| {
        let trial = Trial { compute, device, ..trial };
        measure(world, trial, num_steps(&trial))
    };
    print_status(&format!("{compute}: short micro-batches ...\n"));
    let block_seconds_of = |threads| -> Result<f64, Failure> {
        let trial = Trial { context: 8, threads, ..TRIAL };
        Ok(time_microbatch(&bench, trial, SHORT_MICROBATCHES)?.0.seconds_per_block())
    };
    let block_seconds = block_seconds_of(0)?;
    let block_seconds_alone = block_seconds_of(1)?.min(block_seconds);
    let (mut times, mut widest) = (Vec::new(), None);
    let is_wide = device::accelerator(&recipe(Trial { device, ..TRIAL }))?.is_some();
    let more: &[(usize, usize)] = if is_wide { &DEVICE_WIDTHS } else { &[] };
    for (width, heads) in WIDTHS.into_iter().chain(more.iter().copied()) {
        print_status(&format!("{compute}: width {width} ...\n"));
        let trial = Trial { width, heads, ..TRIAL };
        let (time, bench) = time_microbatch(&bench, trial, MICROBATCHES)?;
        times.push((width, time));
        widest = Some(bench);
    }
    print_status(&format!("{compute}: heads ...\n"));
    let of_heads = |heads: usize| {
        let trial = Trial { width: WIDTHS[3].0, heads, ..TRIAL };
        time_microbatch(&bench, trial, MICROBATCHES)
    };
    let [few, many] = HEADS.map(of_heads);
    let score_seconds = few?.0.seconds_per_score(&many?.0);
    print_status(&format!("{compute}: parameters ...\n"));
    let (width, heads) = WIDTHS[4];
    let trial = Trial { width, heads, context: CONTEXT / 4, ..TRIAL };
    let (quarter, _) = time_microbatch(&bench, trial, MICROBATCHES)?;
    let microbatch_seconds_per_param =
        times[4].1.seconds_per_param(&quarter, block_seconds, score_seconds);
    let WidthFit { points, step_overhead_seconds, update_seconds_per_param } =
        WidthFit::fit(&times, block_seconds, score_seconds, microbatch_seconds_per_param);
    let bench = widest.expect("there are widths");
    let format = Format {
        compute: compute.name().to_owned(),
        peak_flops_per_second: 1e9 * peak_gflops(world, compute, &bench)?,
        points,
        score_seconds,
        block_seconds,
        block_seconds_alone,
        microbatch_seconds_per_param,
    };
    let kernels = bench.kernels;
    Ok(Measured { format, update_seconds_per_param, step_overhead_seconds, kernels })
}

/// Times steps of two numbers of micro-batches; returns the fit and the longer steps.
fn time_microbatch(
    bench: &impl Fn(Trial) -> Result<BenchTrain, Failure>,
    trial: Trial,
    microbatches: [usize; 2],
) -> Result<(MicrobatchTime, BenchTrain), Failure> {
    let [short, long] = microbatches.map(|microbatches| bench(Trial { microbatches, ..trial }));
    let (short, long) = (short?, long?);
    let steps = |bench: &BenchTrain, num_microbatches| TimedSteps {
        step_seconds: bench.step_seconds.clone(),
        flops: bench.gflops * 1e9 * bench.step_seconds_median,
        num_params: bench.num_params,
        num_microbatches,
        tokens: SEQUENCES * trial.context,
        scores: microbatch_scores(&recipe(trial)),
        num_blocks: NUM_BLOCKS,
    };
    let time = MicrobatchTime::fit(&steps(&short, microbatches[0]), &steps(&long, microbatches[1]));
    Ok((time, long))
}

/// Peak GFLOP/s of a number format on all cores.
fn peak_gflops(world: &World, compute: Dtype, bench: &BenchTrain) -> Result<f64, Failure> {
    if bench.device_bytes.is_some() {
        return Ok(bench.fma_peak_gflops);
    }
    let cpu = device::open_cpu(&recipe(Trial { compute, ..TRIAL }), world)?;
    let tiles = if compute == Dtype::Bf16 { tile_peak_gflops(&cpu, world) } else { None };
    Ok(tiles.unwrap_or(bench.fma_peak_gflops))
}

/// Time of every method of gradient compression: the difference that it makes to a step, and the
/// time of adding one more message to a sum.
fn compressors(world: &World, steps: u64) -> Result<Vec<CompressorTime>, Failure> {
    // Passes are short, so that a step is mostly the work per parameter.
    let trial = Trial { width: COMPRESSED_WIDTH, heads: 8, context: 8, ..TRIAL };
    let plain = measure(world, trial, steps)?;
    let num_params = plain.num_params as f64;
    let of_method = |name: &&str| {
        print_status(&format!("compression by {name} ...\n"));
        let warmup: &[&str] = match CompressMethod::from_name(name) {
            Some(CompressMethod::Dgc) => &["compress.ratio_warmup_steps=0"],
            Some(CompressMethod::OneBitAdam) => &["compress.warmup_steps=1", "optim.clip=0"],
            _ => &[],
        };
        let method = format!("compress.method={name}");
        let recipe = recipe_with(trial, &[&[&*method], warmup].concat())?;
        let step = measure_recipe(world, &recipe, steps)?;
        let more = step.step_seconds_median - plain.step_seconds_median;
        let decode_seconds_per_element = decode_seconds(&recipe, world, COMPRESSED_WIDTH)?;
        Ok(CompressorTime {
            method: (*name).to_owned(),
            seconds_per_element: (more / num_params).max(decode_seconds_per_element),
            decode_seconds_per_element,
        })
    };
    let is_method = |name: &&&str| **name != CompressMethod::None.name();
    CompressMethod::NAMES.iter().filter(is_method).map(of_method).collect()
}

/// Width of the model whose gradients are compressed.
const COMPRESSED_WIDTH: usize = 512;

/// Seconds per element to clear a vector and add it to another, by length, on this many threads (0:
/// one per core).
fn sums(world: &World, threads: usize) -> Result<Vec<SumPoint>, Failure> {
    const NUM_ROUNDS: usize = 12;
    const MOST: usize = SUMS[SUMS.len() - 1];
    let cpu = device::open_cpu(&recipe(Trial { threads, ..TRIAL }), world)?;
    let (mut one, mut other) = (vec![0.0_f32; MOST], vec![0.0_f32; MOST]);
    let mut point = |len: usize| {
        // Short sums repeat until the clock can resolve them.
        let times = (SUMS[4] / len).max(1);
        let mut seconds = f64::INFINITY;
        for _ in 0..NUM_ROUNDS {
            let start = world.clock().now();
            for _ in 0..times {
                cpu.for_each_part(&mut other[..len], 1 << 14, |_, part| part.fill(0.0));
                reduce::add_assign(&cpu, &mut one[..len], &other[..len]);
            }
            let all = world.clock().since(start).as_secs_f64();
            seconds = seconds.min(all / (times * len) as f64);
        }
        SumPoint { len, seconds_per_element: seconds }
    };
    Ok(SUMS.map(&mut point).to_vec())
}

/// Layers of the models, and blocks with the embedding and the head.
const NUM_LAYERS: usize = 2;
const NUM_BLOCKS: usize = NUM_LAYERS + 2;

/// Sequences of a micro-batch.
const SEQUENCES: usize = 2;

/// Times steps of one configuration.
fn measure(world: &World, trial: Trial, num_steps: u64) -> Result<BenchTrain, Failure> {
    measure_recipe(world, &recipe(trial), num_steps)
}

fn measure_recipe(world: &World, recipe: &Recipe, num_steps: u64) -> Result<BenchTrain, Failure> {
    assert_eq!(
        describe(&recipe.model).blocks.len(),
        NUM_BLOCKS,
        "the model has the counted blocks"
    );
    let comm = &Comm::threads(world, 1, &lockstep_comm::Options::default())
        .map_err(|error| Failure::bug(error.to_string()))?[0];
    let steps = BenchSteps { timed: num_steps, ..BenchSteps::default() };
    let bench = bench_train(recipe, world, comm, steps)?;
    Ok(bench.expect("rank 0 returns a result"))
}

fn recipe(trial: Trial) -> Recipe {
    recipe_with(trial, &[]).expect("a sound recipe")
}

/// Recipe of a configuration with more settings.
fn recipe_with(trial: Trial, more: &[&str]) -> Result<Recipe, Failure> {
    let Trial { width, heads, context, microbatches, leaves, compute, threads, device } = trial;
    let sets = [
        format!("model.layers={NUM_LAYERS}"),
        format!("model.width={width}"),
        format!("model.heads={heads}"),
        format!("model.kv_heads={heads}"),
        format!("model.ffn={}", 3 * width),
        format!("model.context={context}"),
        format!("train.microbatch={SEQUENCES}"),
        format!("train.batch={}", SEQUENCES * microbatches),
        format!("numerics.invariant_up_to={leaves}"),
        format!("precision.compute={compute}"),
        format!("run.threads={threads}"),
        format!("run.device={device}"),
        "run.workers=1".to_owned(),
    ];
    let sets = sets.into_iter().chain(more.iter().map(|set| (*set).to_owned())).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(Failure::from)
}

/// Measured over predicted time of a short and of a long all-reduce.
fn factors(world: &World) -> Result<[f64; 2], Failure> {
    let bug = |error: lockstep_comm::CommError| Failure::bug(error.to_string());
    let options = lockstep_comm::Options { arena_bytes: 1 << 26, ..Default::default() };
    let ends = Comm::threads(world, 2, &options).map_err(bug)?;
    let (wires, contributions) = (Interconnect::memory(2), Contributions::one_each(2));
    let mut factors = [1.0; 2];
    for (factor, count) in factors.iter_mut().zip(CALLS) {
        let call = Call::once(Op::AllReduce, Lengths::Even(count));
        let mut chosen = SelectedSchedules::new(&wires, &contributions);
        let predicted = wires.call_seconds(chosen.of(&call), &call, &wires.costs);
        *factor =
            (time_all_reduce(world, &ends, count).map_err(bug)? / predicted).clamp(0.05, 200.0);
    }
    Ok(factors)
}

/// Median seconds of an all-reduce on rank 0.
fn time_all_reduce(
    world: &World,
    ends: &[Comm],
    count: usize,
) -> Result<Seconds, lockstep_comm::CommError> {
    const NUM_CALLS: usize = 15;
    let handle = ends[1].start((), move |other, ()| {
        let mut data = other.allocate::<f32>(count)?;
        (0..NUM_CALLS).try_for_each(|_| other.all_reduce(&mut data, Reduction::Sum))
    });
    let mut data = ends[0].allocate::<f32>(count)?;
    let mut seconds = Vec::new();
    for _ in 0..NUM_CALLS {
        let start = world.clock().now();
        ends[0].all_reduce(&mut data, Reduction::Sum)?;
        seconds.push(world.clock().since(start).as_secs_f64());
    }
    handle?.finish()?;
    seconds.sort_by(f64::total_cmp);
    Ok(Seconds(seconds[NUM_CALLS / 2]))
}
