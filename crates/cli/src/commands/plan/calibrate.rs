//! `lockstep plan calibrate`: measures this machine once, so that plans can say how long.

use crate::failure::Failure;
use crate::{forecast, output, workers};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::units::Seconds;
use lockstep_config::{Dtype, Recipe, Sources, resolve};
use lockstep_model::describe;
use lockstep_planner::time::{
    Format, Machine, Point, SumPoint, calibration::VERSION, microbatch_scores,
};
use lockstep_planner::traffic::{Call, Chosen, Lengths, Wires};
use lockstep_platform::World;
use lockstep_schedule::{Addends, Op};
use lockstep_tensor::reduce;
use lockstep_trainer::bench::{BenchTrain, bench_train, tile_peak_gflops};
use lockstep_trainer::device;
use std::path::PathBuf;

/// Measure this machine; `plan` and `train` then say how long a step takes
#[derive(clap::Args)]
#[command(after_help = "\
Trains small models of several widths for a few steps each, in every number format that is asked
for, and times calls between two workers. Takes a minute for each format; do it while nothing else
runs. The result is kept in the user's cache folder, or in the file that LOCKSTEP_CALIBRATION names.

Examples:
  lockstep plan calibrate
  lockstep plan calibrate --formats f32,bf16,fp16
  lockstep plan calibrate --json
  lockstep plan calibrate runs.csv --out constants    types of devices, from tables of runs

With tables of runs (see `plan validate`) nothing is measured: the constants of every type of device
are fitted to the rows, and written as one file for each, for `plan --calibration`.")]
pub(crate) struct Arguments {
    /// Tables of runs to fit types of devices to, instead of measuring this machine
    #[arg(requires = "out")]
    runs: Vec<PathBuf>,
    /// The folder for the constants of every type of device
    #[arg(long, value_name = "FOLDER", requires = "runs")]
    out: Option<PathBuf>,
    /// Timed steps of every model
    #[arg(long, default_value_t = 6)]
    steps: u64,
    /// Number formats of products (precision.compute) to measure
    #[arg(long, value_delimiter = ',', default_values = ["f32", "bf16"], value_name = "FORMAT,..")]
    formats: Vec<String>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Widths of models, with as many heads as are usual.
const WIDTHS: [(usize, usize); 6] = [(32, 2), (64, 2), (128, 4), (256, 4), (512, 8), (768, 12)];

/// Micro-batches of the shorter and the longer step of every model: what they have in common is the update.
const MICROBATCHES: [usize; 2] = [1, 4];

/// Heads of the models of one width that differ in nothing else.
const HEADS: [usize; 2] = [2, 8];

/// Elements of sums that are measured: from what fits into the nearest cache to what fits into no
/// cache.
const SUMS: [usize; 6] = [1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23];

/// Micro-batches, all of one short sequence, of the steps that show what blocks take besides arithmetic.
const SHORT_MICROBATCHES: [usize; 2] = [1, 33];

/// What a step is measured of: a model of two layers, micro-batches of two sequences.
#[derive(Clone, Copy)]
struct Trial {
    width: usize,
    heads: usize,
    context: usize,
    microbatches: usize,
    /// At most one for each micro-batch.
    leaves: usize,
    /// What products multiply in.
    compute: Dtype,
    /// 0: as many as there are cores.
    threads: usize,
}

/// Tokens of a sequence, where it is not the subject.
const CONTEXT: usize = 256;

/// What others differ from.
const TRIAL: Trial = Trial {
    width: WIDTHS[0].0,
    heads: WIDTHS[0].1,
    context: CONTEXT,
    microbatches: 1,
    leaves: 1,
    compute: Dtype::F32,
    threads: 0,
};

/// Elements of a short call and of a long one.
const CALLS: [usize; 2] = [16, 1 << 20];

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if let Some(folder) = &arguments.out {
        return super::validate::calibrate(&arguments.runs, folder, world);
    }
    if arguments.steps == 0 {
        return Err(Failure::user("--steps 0 measures nothing; try 6"));
    }
    let Some(path) = forecast::path(world) else {
        return Err(Failure::user(
            "there is no home folder to keep the result in; name a file in LOCKSTEP_CALIBRATION",
        ));
    };
    let formats = formats(&arguments.formats)?;
    let found = calibrate(world, arguments.steps, &formats)?;
    if let Some(folder) = path.parent() {
        world.files().create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&found).expect("our values are JSON") + "\n";
    world.files().write_atomic(&path, text.as_bytes())?;
    if arguments.json {
        return output::json(&found);
    }
    let tables: Vec<String> = found.formats.iter().map(table).collect();
    output::text(&format!("{}\nkept in {}\n", tables.join("\n"), path.display()))
}

/// The number formats by these names, each once.
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
        "width  speed in {}\n{}\na block takes {} besides, {} on one thread\n",
        format.compute,
        speeds.join("\n"),
        Seconds(format.block_seconds),
        Seconds(format.block_seconds_alone),
    )
}

/// Everything that is measured.
fn calibrate(world: &World, steps: u64, formats: &[Dtype]) -> Result<Machine, Failure> {
    let mut measured = Vec::new();
    for compute in formats {
        measured.push(in_format(world, steps, *compute)?);
    }
    workers::tell("sums ...\n");
    let sums = sums(world)?;
    workers::tell("calls between workers ...\n");
    let [latency_factor, transfer_factor] = factors(world)?;
    // An update is the same in all formats.
    let first = &measured[0];
    Ok(Machine {
        version: VERSION,
        host: world.host().name(),
        cores: world.threads().available(),
        kernels: first.kernels.clone(),
        update_seconds_per_param: first.update_seconds_per_param,
        step_overhead_seconds: first.step_overhead_seconds,
        formats: measured.into_iter().map(|measured| measured.format).collect(),
        sums,
        latency_factor,
        transfer_factor,
    })
}

/// What is measured with products in one number format.
struct Measured {
    format: Format,
    update_seconds_per_param: f64,
    step_overhead_seconds: f64,
    kernels: String,
}

fn in_format(world: &World, steps: u64, compute: Dtype) -> Result<Measured, Failure> {
    // Steps of narrow models are over in a moment, so there can be more of them.
    let num_steps = |trial: &Trial| if trial.width <= 128 { 8 * steps } else { steps };
    let bench = |trial: Trial| {
        let trial = Trial { compute, ..trial };
        measure(world, trial, num_steps(&trial))
    };
    workers::tell(&format!("{compute}: short micro-batches ...\n"));
    let block_seconds = block_seconds(&bench, 0)?;
    let block_seconds_alone = block_seconds_of_one(&bench, block_seconds)?;
    let mut measured = Vec::new();
    for (width, heads) in WIDTHS {
        workers::tell(&format!("{compute}: width {width} ...\n"));
        let trial = Trial { width, heads, ..TRIAL };
        let [short, long] = MICROBATCHES.map(|microbatches| bench(Trial { microbatches, ..trial }));
        measured.push((width, Microbatches::of(&short?, &long?, MICROBATCHES, trial)));
    }
    workers::tell(&format!("{compute}: heads ...\n"));
    let score_seconds = score_seconds(&bench)?;
    workers::tell(&format!("{compute}: parameters ...\n"));
    let (width, heads) = WIDTHS[4];
    let large = &measured[4].1;
    let trial = Trial { width, heads, context: CONTEXT / 4, ..TRIAL };
    let [short, long] = MICROBATCHES.map(|microbatches| bench(Trial { microbatches, ..trial }));
    let quarter = Microbatches::of(&short?, &long?, MICROBATCHES, trial);
    let microbatch_seconds_per_param = large.intercept(&quarter, block_seconds, score_seconds);
    let points = measured.iter().map(|(width, microbatches)| Point {
        width: *width,
        flops_per_second: microbatches.rate(
            block_seconds,
            score_seconds,
            microbatch_seconds_per_param,
        ),
    });
    let points: Vec<Point> = points.collect();
    // The first model has next to no parameters; of the large ones nothing fits into a cache.
    let step_overhead_seconds = measured[0].1.besides;
    let of_large = measured[3..].iter().map(|(_, microbatches)| {
        (microbatches.besides - step_overhead_seconds).max(0.0) / microbatches.num_params
    });
    let update_seconds_per_param = of_large.sum::<f64>() / 3.0;
    let bench: BenchTrain = measured.pop().expect("there are widths").1.bench;
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

/// The most that the units which multiply in a format reach, on all cores.
fn peak_gflops(world: &World, compute: Dtype, bench: &BenchTrain) -> Result<f64, Failure> {
    let cpu = device::open(&recipe(Trial { compute, ..TRIAL }), world)?;
    let tiles = if compute == Dtype::Bf16 { tile_peak_gflops(&cpu, world) } else { None };
    Ok(tiles.unwrap_or(bench.fma_peak_gflops))
}

/// A step that few are quicker than: other programs can only slow one down, but the very quickest
/// is luck.
fn usual_step(bench: &BenchTrain) -> f64 {
    let mut steps = bench.step_seconds.clone();
    steps.sort_by(f64::total_cmp);
    steps[steps.len() / 4]
}

/// What micro-batches of a model take, and a step besides.
struct Microbatches {
    /// Of one micro-batch.
    seconds: f64,
    /// Of what a step does for all micro-batches together.
    besides: f64,
    flops: f64,
    num_params: f64,
    tokens: f64,
    scores: f64,
    num_blocks: f64,
    bench: BenchTrain,
}

impl Microbatches {
    fn of(short: &BenchTrain, long: &BenchTrain, microbatches: [usize; 2], trial: Trial) -> Self {
        let [few, many] = [short, long].map(usual_step);
        let num_microbatches = microbatches[1] as f64;
        // Whatever disturbs the shorter step would make micro-batches look free.
        let seconds = ((many - few) / (microbatches[1] - microbatches[0]) as f64)
            .max(0.8 * many / num_microbatches);
        Self {
            seconds,
            besides: (many - seconds * num_microbatches).max(0.0),
            flops: long.gflops * 1e9 * long.step_seconds_median / num_microbatches,
            num_params: long.num_params as f64,
            tokens: (SEQUENCES * trial.context) as f64,
            scores: microbatch_scores(&recipe(trial)),
            num_blocks: NUM_BLOCKS as f64,
            bench: long.clone(),
        }
    }

    /// What a micro-batch costs a parameter, however short it is: what is left where a line through micro-batches
    /// of two lengths meets no tokens.
    fn intercept(&self, shorter: &Self, block_seconds: f64, score_seconds: f64) -> f64 {
        let linear =
            |microbatches: &Self| microbatches.seconds - microbatches.scores * score_seconds;
        let slope = (linear(self) - linear(shorter)) / (self.tokens - shorter.tokens);
        let at_none = linear(self) - slope * self.tokens - self.num_blocks * block_seconds;
        // More than half of the shorter micro-batch is a measurement gone wrong.
        at_none.clamp(0.0, shorter.seconds / 2.0) / self.num_params
    }

    /// The speed of the products alone.
    fn rate(&self, block_seconds: f64, score_seconds: f64, seconds_per_param: f64) -> f64 {
        let besides = self.num_blocks * block_seconds
            + self.scores * score_seconds
            + self.num_params * seconds_per_param;
        self.flops / (self.seconds - besides).max(0.3 * self.seconds)
    }
}

/// What a score of attention takes besides its products: models that differ in the number of heads
/// only have as many operations and other numbers of scores.
fn score_seconds(bench: &impl Fn(Trial) -> Result<BenchTrain, Failure>) -> Result<f64, Failure> {
    let of_heads = |heads: usize| -> Result<Microbatches, Failure> {
        let width = WIDTHS[3].0;
        let trial = Trial { width, heads, ..TRIAL };
        let [short, long] = MICROBATCHES.map(|microbatches| bench(Trial { microbatches, ..trial }));
        Ok(Microbatches::of(&short?, &long?, MICROBATCHES, trial))
    };
    let [few, many] = HEADS.map(of_heads);
    let (few, many) = (few?, many?);
    Ok(((many.seconds - few.seconds) / (many.scores - few.scores)).max(0.0))
}

/// What it takes to clear a vector and to add it to another, for an element, by length.
fn sums(world: &World) -> Result<Vec<SumPoint>, Failure> {
    const NUM_ROUNDS: usize = 12;
    const MOST: usize = SUMS[SUMS.len() - 1];
    let cpu = device::open(&recipe(TRIAL), world)?;
    let (mut one, mut other) = (vec![0.0_f32; MOST], vec![0.0_f32; MOST]);
    let mut point = |len: usize| {
        // Short ones are over before a clock has moved.
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

/// What a block of a micro-batch takes besides arithmetic: micro-batches of 16 tokens have next to none.
fn block_seconds(
    bench: &impl Fn(Trial) -> Result<BenchTrain, Failure>,
    threads: usize,
) -> Result<f64, Failure> {
    let trial = Trial { context: 8, threads, ..TRIAL };
    let [short, long] =
        SHORT_MICROBATCHES.map(|microbatches| bench(Trial { microbatches, ..trial }));
    let microbatches = Microbatches::of(&short?, &long?, SHORT_MICROBATCHES, trial);
    Ok(microbatches.seconds / microbatches.num_blocks)
}

/// The same with one thread, where a worker has several.
fn block_seconds_of_one(
    bench: &impl Fn(Trial) -> Result<BenchTrain, Failure>,
    of_all: f64,
) -> Result<f64, Failure> {
    Ok(block_seconds(bench, 1)?.min(of_all))
}

/// Layers of the models that are measured, and the blocks that have to do with them.
const NUM_LAYERS: usize = 2;
const NUM_BLOCKS: usize = NUM_LAYERS + 2;

/// Sequences of a micro-batch.
const SEQUENCES: usize = 2;

/// Steps of a model of two layers.
fn measure(world: &World, trial: Trial, num_steps: u64) -> Result<BenchTrain, Failure> {
    let recipe = recipe(trial);
    assert_eq!(describe(&recipe.model).blocks.len(), NUM_BLOCKS, "blocks are counted as they are");
    let comm = &Comm::threads(world, 1, &lockstep_comm::Options::default())
        .map_err(|error| Failure::bug(error.to_string()))?[0];
    let bench = bench_train(&recipe, world, comm, num_steps)?;
    Ok(bench.expect("a worker alone is the first"))
}

fn recipe(trial: Trial) -> Recipe {
    let Trial { width, heads, context, microbatches, leaves, compute, threads } = trial;
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
        "run.workers=1".to_owned(),
    ];
    resolve(&Sources { sets: sets.into(), ..Sources::default() }).expect("a sound recipe")
}

/// How much longer a short and a long all-reduce take than the engine assumes.
fn factors(world: &World) -> Result<[f64; 2], Failure> {
    let bug = |error: lockstep_comm::CommError| Failure::bug(error.to_string());
    let options = lockstep_comm::Options { arena_bytes: 1 << 26, ..Default::default() };
    let ends = Comm::threads(world, 2, &options).map_err(bug)?;
    let (wires, addends) = (Wires::memory(2), Addends::one_each(2));
    let mut factors = [1.0; 2];
    for (factor, count) in factors.iter_mut().zip(CALLS) {
        let call = Call::once(Op::AllReduce, Lengths::Even(count));
        let mut chosen = Chosen::new(&wires, &addends);
        let assumed = wires.call_seconds(chosen.of(&call), &call, &wires.costs);
        *factor = (time_all_reduce(world, &ends, count).map_err(bug)? / assumed).clamp(0.05, 200.0);
    }
    Ok(factors)
}

/// The median of some calls, as the first worker sees it.
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
