//! `lockstep plan calibrate`: measures this machine once, so that plans can say how long.

use crate::failure::Failure;
use crate::{forecast, output, workers};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::units::Seconds;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_planner::time::{Calibration, Point, calibration::VERSION};
use lockstep_planner::traffic::{Call, Chosen, Lengths, Wires};
use lockstep_platform::World;
use lockstep_schedule::{Addends, Op};
use lockstep_trainer::bench::{BenchTrain, bench_train};

/// Measure this machine; `plan` and `train` then say how long a step takes
#[derive(clap::Args)]
#[command(after_help = "\
Trains small models of several widths for a few steps each, and times calls between two workers.
Takes a minute; do it while nothing else runs. The result is kept in the user's cache folder, or in
the file that LOCKSTEP_CALIBRATION names.

Examples:
  lockstep plan calibrate
  lockstep plan calibrate --json")]
pub(crate) struct Arguments {
    /// Timed steps of every model
    #[arg(long, default_value_t = 6)]
    steps: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Widths of models, with as many heads as are usual.
const WIDTHS: [(usize, usize); 6] = [(32, 2), (64, 2), (128, 4), (256, 4), (512, 8), (768, 12)];

/// Lanes of the shorter and the longer step of every model: what they have in common is the update.
const LANES: [usize; 2] = [1, 4];

/// Elements of a short call and of a long one.
const CALLS: [usize; 2] = [16, 1 << 20];

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if arguments.steps == 0 {
        return Err(Failure::user("--steps 0 measures nothing; try 6"));
    }
    let Some(path) = forecast::path(world) else {
        return Err(Failure::user(
            "there is no home folder to keep the result in; name a file in LOCKSTEP_CALIBRATION",
        ));
    };
    let mut points = Vec::new();
    let mut updates = Vec::new();
    let mut step_overhead_seconds = None;
    let mut last = None;
    for (width, heads) in WIDTHS {
        workers::tell(&format!("width {width} ...\n"));
        let [short, long] = LANES.map(|lanes| measure(world, width, heads, lanes, arguments.steps));
        let (short, long) = (short?, long?);
        let [few, many] = [&short, &long].map(usual_step);
        // Whatever disturbs the shorter step would make lanes look free.
        let per_lane =
            ((many - few) / (LANES[1] - LANES[0]) as f64).max(0.8 * many / LANES[1] as f64);
        let lane_flops = long.gflops * 1e9 * long.step_seconds_median / LANES[1] as f64;
        points.push(Point { width, flops_per_second: lane_flops / per_lane });
        let besides = (many - per_lane * LANES[1] as f64).max(0.0);
        // The first model has next to no parameters.
        let overhead = *step_overhead_seconds.get_or_insert(besides);
        updates.push((besides - overhead).max(0.0) / long.num_params as f64);
        last = Some(long);
    }
    workers::tell("calls between workers ...\n");
    let [latency_factor, transfer_factor] = factors(world)?;
    let bench: BenchTrain = last.expect("there are widths");
    // Of large models, whose parameters do not fit into a cache.
    let large = &updates[updates.len() - 3..];
    let update_seconds_per_param = large.iter().sum::<f64>() / large.len() as f64;
    let found = Calibration {
        version: VERSION,
        host: world.host().name(),
        cores: world.threads().available(),
        kernels: bench.kernels,
        peak_flops_per_second: bench.fma_peak_gflops * 1e9,
        points,
        update_seconds_per_param,
        step_overhead_seconds: step_overhead_seconds.unwrap_or(0.0),
        latency_factor,
        transfer_factor,
    };
    if let Some(folder) = path.parent() {
        world.files().create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&found).expect("our values are JSON") + "\n";
    world.files().write_atomic(&path, text.as_bytes())?;
    if arguments.json {
        return output::json(&found);
    }
    let speeds: Vec<String> = found
        .points
        .iter()
        .map(|point| format!("{:>5}  {:.1} GFLOP/s", point.width, point.flops_per_second / 1e9))
        .collect();
    output::text(&format!("width  speed\n{}\nkept in {}\n", speeds.join("\n"), path.display()))
}

/// A step that few are quicker than: other programs can only slow one down, but the very quickest
/// is luck.
fn usual_step(bench: &BenchTrain) -> f64 {
    let mut steps = bench.step_seconds.clone();
    steps.sort_by(f64::total_cmp);
    steps[steps.len() / 4]
}

/// Steps of a model of two layers.
fn measure(
    world: &World,
    width: usize,
    heads: usize,
    lanes: usize,
    num_steps: u64,
) -> Result<BenchTrain, Failure> {
    let recipe = recipe(width, heads, lanes);
    let comm = &Comm::threads(world, 1, &lockstep_comm::Options::default())
        .map_err(|error| Failure::bug(error.to_string()))?[0];
    let bench = bench_train(&recipe, world, comm, num_steps)?;
    Ok(bench.expect("a worker alone is the first"))
}

fn recipe(width: usize, heads: usize, lanes: usize) -> Recipe {
    let sets = [
        "model.layers=2".to_owned(),
        format!("model.width={width}"),
        format!("model.heads={heads}"),
        format!("model.kv_heads={heads}"),
        format!("model.ffn={}", 3 * width),
        "model.context=256".to_owned(),
        "train.microbatch=2".to_owned(),
        format!("train.batch={}", 2 * lanes),
        "numerics.invariant_up_to=1".to_owned(),
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
        let call = Call { op: Op::AllReduce, bucket: 0, lengths: Lengths::Even(count), times: 1 };
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
