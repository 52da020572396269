//! Training throughput benchmark: tokens per second and fraction of the machine's FMA peak.

use crate::figures::median;
use crate::learner::Learner;
use crate::materialize::materialize;
use crate::microbatch::microbatch_of;
use crate::operation_profile::{self, Floor, OperationProfile};
use crate::{TrainError, device, feed};
use lockstep_comm::Comm;
use lockstep_config::{Dtype, Recipe};
use lockstep_data::{Batch, Cursor};
use lockstep_model::{Microbatch, precision_of};
use lockstep_optim::{Clip, Update};
use lockstep_parallel::compress::SampleMessage;
use lockstep_parallel::from_recipe::{self, mesh_of};
use lockstep_parallel::groups::fix_algorithms;
use lockstep_parallel::{Groups, Replica, StepHost};
use lockstep_platform::World;
use lockstep_tensor::device::{
    Compute, Device, Dtype as DeviceDtype, Epilogue, Matrix, MatrixMut, OperationTime,
};
use lockstep_tensor::gemm::Write;
use lockstep_tensor::{Cpu, peak};
use serde::Serialize;
use std::time::Duration;

/// Untimed steps in which caches, pages and clocks warm up.
const WARM_UP_STEPS: u64 = 2;

/// Figures of a training benchmark. Field names are stable: scripts rely on them.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct BenchTrain {
    pub tokens_per_second: f64,
    pub gflops: f64,
    pub fma_peak_gflops: f64,
    pub peak_share: f64,
    pub step_seconds_median: f64,
    pub peak_rss_bytes: u64,
    /// Peak of the buffers on the accelerator; null without one.
    pub device_bytes: Option<u64>,
    pub threads: usize,
    pub workers: usize,
    pub precision: String,
    pub kernels: String,
    pub num_params: u64,
    pub step_seconds: Vec<f64>,
    /// Rank 0's device time by operation, where steps were profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_operation: Option<OperationProfile>,
    /// Cost of the spans of a sampled step, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spans: Option<SpanCost>,
}

/// Steps that record the spans of their tasks beside steps that do not, taken in turns.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct SpanCost {
    pub spans_per_step: usize,
    pub plain_step_seconds_median: f64,
    pub sampled_step_seconds_median: f64,
    /// Median over pairs of steps of sampled over plain.
    pub ratio_median: f64,
}

/// Steps of a benchmark after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchSteps {
    /// Timed steps.
    pub timed: u64,
    /// Steps after these whose operations an accelerator records.
    pub profiled: u64,
    /// Pairs of steps after these of which one records the spans of its tasks.
    pub span_pairs: u64,
}

/// Trains timed and profiled steps of the recipe and writes no run folder. Rank 0 returns the
/// figures.
pub fn bench_train(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    steps: BenchSteps,
) -> Result<Option<BenchTrain>, TrainError> {
    let compute = device::open(recipe, world, comm)?;
    let (mut bench, times) = bench_on(&compute, recipe, world, comm, steps)?;
    if comm.group_rank() != 0 {
        return Ok(None);
    }
    // Other ranks have ended their work, and the model has released its memory.
    if let Some(device) = compute.accelerator().filter(|_| steps.profiled > 0) {
        let floor = Floor::measure(&**device, world)?;
        bench.by_operation =
            Some(floor.compare(&times, steps.profiled, bench.step_seconds_median)?);
    }
    Ok(Some(bench))
}

fn bench_on(
    cpu: &Compute,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    steps: BenchSteps,
) -> Result<(BenchTrain, Vec<OperationTime>), TrainError> {
    fix_algorithms(recipe, comm);
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let mut learner = materialize(recipe, cpu, &groups, world)?;
    let mut loader = feed.loader(world, Cursor::start())?;
    let mut targets = feed::Targets::new(&feed, groups.data());
    let mut step = 0;
    let mut num_spans = 0;
    let mut time_step = |is_sampled: bool| -> Result<f64, TrainError> {
        let start = world.clock().now();
        learner.enter(recipe, step)?;
        let batch = loader.next_batch()?;
        let num_targets = targets.of(batch)?;
        let (count, lr) = (step + 1, learner.lr(step));
        let Learner { replica, optimizer, clip, stability, .. } = &mut learner;
        replica.set_loss_scale(stability.scaler.scale());
        replica.set_sampled(is_sampled);
        let mut host = TimedStep { recipe, batch, num_targets, count, lr };
        replica.run_step(cpu, recipe.train.seed, step, optimizer, clip, &mut host)?;
        optimizer.check().map_err(TrainError::StateLost)?;
        num_spans = num_spans.max(replica.take_spans().len());
        step += 1;
        Ok(world.clock().since(start).as_secs_f64())
    };
    for _ in 0..WARM_UP_STEPS {
        time_step(false)?;
    }
    let plain_steps = (0..steps.timed).map(|_| time_step(false));
    let step_seconds = plain_steps.collect::<Result<Vec<_>, _>>()?;
    let times = match steps.profiled {
        0 => Vec::new(),
        num_steps => {
            operation_profile::record(cpu.device(), num_steps, || time_step(false).map(drop))?
        }
    };
    let spans = match steps.span_pairs {
        0 => None,
        pairs => Some(span_cost(pairs, &mut time_step)?),
    };
    let spans = spans.map(|cost| SpanCost { spans_per_step: num_spans, ..cost });
    let step_seconds_median = median(&step_seconds);
    let tokens_per_second = recipe.tokens_per_step() as f64 / step_seconds_median;
    let blueprint = learner.replica.blueprint();
    let flops = blueprint.flops_per_token();
    let gflops = tokens_per_second * (flops.forward + flops.backward) as f64 / 1e9;
    // All workers measure at once, each with its own threads.
    comm.barrier()?;
    let of_rank = match cpu.accelerator() {
        Some(device) => product_peak_flops(&**device, recipe, world)? / 1e9,
        None => fma_peak_gflops(cpu, world),
    };
    let fma_peak_gflops = of_rank * comm.group_size() as f64;
    let bench = BenchTrain {
        tokens_per_second,
        gflops,
        fma_peak_gflops,
        peak_share: gflops / fma_peak_gflops,
        step_seconds_median,
        peak_rss_bytes: world.host().peak_rss_bytes(),
        device_bytes: learner.device_bytes()?,
        threads: cpu.num_threads(),
        workers: recipe.run.workers,
        precision: recipe.precision.compute.to_string(),
        kernels: cpu.accelerator().map_or_else(|| cpu.isa().to_string(), |it| it.name()),
        num_params: blueprint.num_model_params() as u64,
        step_seconds,
        by_operation: None,
        spans,
    };
    Ok((bench, times))
}

/// Times pairs of steps with `time_step`, which records spans or not; which of the two comes first
/// changes from pair to pair, so that a machine that slows down favours neither.
fn span_cost(
    pairs: u64,
    time_step: &mut impl FnMut(bool) -> Result<f64, TrainError>,
) -> Result<SpanCost, TrainError> {
    let (mut plain, mut sampled) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        for is_sampled in [pair % 2 == 1, pair % 2 == 0] {
            let seconds = time_step(is_sampled)?;
            if is_sampled { &mut sampled } else { &mut plain }.push(seconds);
        }
    }
    let ratios: Vec<f64> =
        sampled.iter().zip(&plain).map(|(with, without)| with / without).collect();
    Ok(SpanCost {
        spans_per_step: 0,
        plain_step_seconds_median: median(&plain),
        sampled_step_seconds_median: median(&sampled),
        ratio_median: median(&ratios),
    })
}

/// A step that always updates.
struct TimedStep<'a> {
    recipe: &'a Recipe,
    batch: &'a Batch,
    num_targets: u64,
    count: u64,
    lr: f64,
}

impl<'a> StepHost<'a> for TimedStep<'a> {
    type Error = TrainError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        microbatch_of(self.recipe, self.batch, index, self.num_targets)
    }

    fn num_targets(&self, _: Option<&[u32]>) -> u64 {
        self.num_targets
    }

    fn decide(&mut self, _: &mut Replica, clip: &Clip) -> Result<Option<Update>, TrainError> {
        Ok(Some(Update { count: self.count, lr: self.lr, clip: *clip }))
    }
}

/// Peak FMA rate of all threads together.
pub fn fma_peak_gflops(cpu: &Cpu, world: &World) -> f64 {
    best_burst(world, |num_rounds| Some(peak::fma_burst(cpu, num_rounds))).expect("FMA always runs")
}

/// Peak bf16 tile-multiply rate of all threads, if the CPU has tile units.
pub fn tile_peak_gflops(cpu: &Cpu, world: &World) -> Option<f64> {
    best_burst(world, |num_rounds| peak::tile_burst(cpu, num_rounds))
}

/// Peak FLOP/s of an accelerator in the number format of the recipe's matmuls: the best of several
/// large products.
fn product_peak_flops(
    device: &dyn Device,
    recipe: &Recipe,
    world: &World,
) -> Result<f64, TrainError> {
    const SIZE: usize = 8192;
    let precision = precision_of(recipe.precision.compute);
    let dtype = DeviceDtype::of_operands(precision);
    let matrix = || device.allocate(dtype, SIZE * SIZE);
    let (a, b, mut c) = (matrix()?, matrix()?, matrix()?);
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        device.synchronize()?;
        let start = world.clock().now();
        let operand = |of| Matrix::new(of, SIZE, SIZE);
        let target = MatrixMut::new(c.view_mut(), SIZE, SIZE);
        let (a, b) = (operand(a.view()), operand(b.view()).t());
        device.product(precision, a, b, target, Write::Set, Epilogue::None)?;
        device.synchronize()?;
        best = best.min(world.clock().since(start).as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best)
}

/// Peak FLOP/s of the device in the number format of the recipe's matmuls: of all cores, measured
/// for some 20 ms, or of an accelerator.
pub fn measure_peak_flops(recipe: &Recipe, world: &World) -> Result<f64, TrainError> {
    if let Some(accelerator) = device::accelerator_at(recipe, world, 0)? {
        return product_peak_flops(&*accelerator, recipe, world);
    }
    let mut all_cores = recipe.clone();
    all_cores.run.threads = world.threads().available();
    let cpu = device::open_cpu(&all_cores, world)?;
    let shortest = Duration::from_millis(2);
    let tiles = match recipe.precision.compute {
        Dtype::Bf16 => best_of(world, 10, shortest, |rounds| peak::tile_burst(&cpu, rounds)),
        _ => None,
    };
    let fma = || best_of(world, 10, shortest, |rounds| Some(peak::fma_burst(&cpu, rounds)));
    Ok(1e9 * tiles.or_else(fma).expect("FMA always runs"))
}

/// Best of several bursts of about 10 ms.
fn best_burst(world: &World, burst: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    best_of(world, 20, Duration::from_millis(10), burst)
}

/// Best GFLOP/s of several bursts, which grow until they take `shortest`. Other programs can only
/// slow a burst down, so the best is closest to the peak.
fn best_of(
    world: &World,
    num_bursts: usize,
    shortest: Duration,
    burst: impl Fn(usize) -> Option<f64>,
) -> Option<f64> {
    let mut best = 0.0f64;
    let mut num_rounds = 1 << 14;
    for _ in 0..num_bursts {
        let start = world.clock().now();
        let flops = burst(num_rounds)?;
        let elapsed = world.clock().since(start);
        best = best.max(flops / elapsed.as_secs_f64() / 1e9);
        if elapsed < shortest {
            num_rounds *= 2;
        }
    }
    Some(best)
}

/// Seconds per element to add a worker's message to the sum of compressed gradients; zero where
/// messages are added on the way.
pub fn decode_seconds(recipe: &Recipe, world: &World, width: usize) -> Result<f64, TrainError> {
    const NUM_TIMES: usize = 5;
    let cpu = Cpu::single(device::isa(recipe)?);
    let method = from_recipe::method_of(recipe);
    let values: Vec<f32> =
        (0..width * width).map(|index| ((index * 7919 % 1009) as f32 - 504.0) / 504.0).collect();
    let sample = method.and_then(|method| SampleMessage::new(&cpu, method, &values, width));
    let (mut sum, mut seconds) = (vec![0.0; values.len()], f64::INFINITY);
    let Some(sample) = sample else { return Ok(0.0) };
    for _ in 0..NUM_TIMES {
        let start = world.clock().now();
        sample.add_to(&mut sum);
        seconds = seconds.min(world.clock().since(start).as_secs_f64());
    }
    Ok(seconds / values.len() as f64)
}
