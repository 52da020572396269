//! `lockstep plan RECIPE`: memory, bytes sent and step time of a recipe on this machine.

use super::{OutputOptions, Section};
use crate::automatic::{AutomaticSettings, Purpose};
use crate::failure::Failure;
use crate::memory_report::{Memory, ProcessReport};
use crate::output;
use crate::quantity::{digits, percent, si_bytes};
use crate::recipe_args::RecipeArguments;
use crate::workers::print_status;
use crate::{calibration_file, console, epochs, prediction};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{Isolation, Recipe};
use lockstep_model::describe;
use lockstep_planner::Forecast;
use lockstep_planner::hardware::device_name;
use lockstep_planner::layout::LEGEND;
use lockstep_planner::memory::{Process, Settings, activations_by_block};
use lockstep_planner::recipe::layout_from_recipe;
use lockstep_planner::traffic::{self, ByteRange, Interconnect, TrafficCounts};
use lockstep_platform::World;
use lockstep_trainer::TrainError;
use lockstep_trainer::device::{Accelerator, accelerator};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A plan. Field names are stable: scripts rely on them.
#[derive(Serialize)]
struct Report {
    feasible: bool,
    num_params: u64,
    memory: Memory,
    memory_by_rank: Vec<Memory>,
    activations_by_block: Vec<BlockBytes>,
    peak_step: u64,
    /// Parts of the largest process; they sum to `peak_process_bytes`.
    peak_process: ProcessReport,
    peak_process_bytes: u64,
    peak_process_bytes_by_rank: Vec<u64>,
    /// Peak of the buffers on each rank's accelerator; null where the model is in host memory.
    device_bytes_by_rank: Option<Vec<u64>>,
    wire_bytes: u64,
    /// Less than `wire_bytes` where timing or data decide how much is sent.
    wire_bytes_least: u64,
    wire_bytes_by_rank: Vec<u64>,
    wire_is_exact: bool,
    traffic_by_rank: Vec<BTreeMap<String, Traffic>>,
    step_seconds: Option<f64>,
    why_no_time: Option<String>,
    compute_seconds: Option<f64>,
    update_seconds: Option<f64>,
    communication_seconds: Option<f64>,
    exposed_communication_seconds: Option<f64>,
    bubble_fraction: f64,
    mfu: Option<f64>,
    tokens_per_second: Option<f64>,
    tokens_per_second_per_device: Option<f64>,
    tflops_per_device: Option<f64>,
    batch: usize,
    /// Optimizer steps of the run.
    steps: u64,
    context: usize,
    precision: &'static str,
    days: Option<f64>,
    dollars: Option<f64>,
    /// Settings chosen by memory; null where the recipe has no automatic ones.
    automatic: Option<AutomaticReport>,
    layout: LayoutReport,
    alternatives: Vec<LayoutReport>,
}

/// Automatic settings with their memory; those of null are not automatic.
#[derive(Serialize)]
struct AutomaticReport {
    device: String,
    /// Null if unknown.
    memory_bytes: Option<u64>,
    /// All but the reserve; null if unknown.
    usable_bytes: Option<u64>,
    chosen: SettingsReport,
    /// The next faster ones, which do not fit.
    faster: Option<SettingsReport>,
}

#[derive(Serialize)]
struct SettingsReport {
    microbatch: Option<usize>,
    recompute: Option<String>,
    offload_activations: Option<String>,
    needed_bytes: u64,
}

#[derive(Serialize)]
struct BlockBytes {
    block: String,
    bytes: u64,
}

#[derive(Serialize)]
struct Traffic {
    calls: u64,
    messages: u64,
    sent_bytes: u64,
    received_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
}

#[derive(Serialize)]
struct LayoutReport {
    brief: String,
    workers: usize,
    tensor: usize,
    sequence: bool,
    pipeline: usize,
    virtual_stages: usize,
    schedule: String,
    data: usize,
    zero: u8,
    microbatch: usize,
    recompute: String,
}

/// Device of a plan, and settings that were chosen by its memory.
struct Target {
    /// The GPU that `--device` names; the recipe's own device without it.
    named: Option<Accelerator>,
    settings: Option<AutomaticSettings>,
}

pub(super) fn run(
    arguments: &RecipeArguments,
    device: Option<&str>,
    options: OutputOptions,
    world: &World,
) -> Result<(), Failure> {
    let process = prediction::measure_process(world);
    let named = device.map(named_device).transpose()?;
    let on_device = device.map(|_| "run.device=cuda".to_owned());
    let arguments = arguments.with(on_device.as_slice());
    let (recipe, settings) = arguments.resolve_for(Purpose::Run(named.as_ref()), world, None)?;
    let target = Target { named, settings };
    let text = |recipe: &Recipe| prediction::text_bytes(recipe, world);
    let forecast = match (accelerator(&recipe), &target.named) {
        (Ok(_) | Err(TrainError::Device(_)), Some(named)) => {
            prediction::check_memory_on(Some(named), &recipe, world, process)?;
            Forecast::unchecked(&recipe, Process { text: text(&recipe), ..process }, None)
        }
        (Err(error @ TrainError::Device(_)), None) => {
            let line = format!(
                "warning: {error}; this is the plan for another machine, and whether its device \
                 has enough memory is unknown"
            );
            print_status(&console::wrap_status(world, &line));
            let process = Process { text: text(&recipe), ..process };
            prediction::predict_unchecked(&recipe, world, process)
        }
        (found, _) => {
            found?;
            prediction::check_memory(&recipe, world, process)?;
            let process = Process { text: text(&recipe), ..process };
            prediction::predict(&recipe, world, process)?
        }
    };
    let rows = prediction::sparse_rows(&recipe, world, &forecast);
    let forecast = forecast.with_rows(&recipe, &Interconnect::of_recipe(&recipe), &rows);
    let report = report(&recipe, &forecast, &target, world);
    if options.json {
        return output::json(&report);
    }
    output::text(&render(&recipe, &forecast, &report, &target, options.section))
}

/// Calibrations of devices with kernels of this engine: CUDA, compute capability 8.0 or newer.
const SUPPORTED: [&str; 4] = ["a100", "ada", "h100", "b200"];

/// The GPU with this name, from its data sheet.
fn named_device(name: &str) -> Result<Accelerator, Failure> {
    let refuse = |why: String| Failure::user(format!("--device {why}"));
    let device = device_name::find(name).map_err(|error| refuse(error.to_string()))?;
    if !SUPPORTED.contains(&device.calibration) {
        let why = format!("{} does not run recipes; try h100-80gb or h200-141gb", device.name);
        return Err(refuse(why));
    }
    let memory_bytes = device.memory_bytes() as u64;
    Ok(Accelerator { name: device.name.to_owned(), memory_bytes, free_bytes: memory_bytes })
}

fn why_no_time(recipe: &Recipe, target: &Target, world: &World) -> String {
    match &target.named {
        Some(Accelerator { name, .. }) if recipe.unmodelled_traffic().is_none() => format!(
            "lockstep plan calibrate --device cuda adds the step time, on a machine with {name}"
        ),
        _ => calibration_file::why_no_step_time(recipe, world),
    }
}

fn automatic_report(settings: &AutomaticSettings) -> AutomaticReport {
    let AutomaticSettings { choice, place, memory } = settings;
    let known = |bytes: Bytes| (bytes > Bytes(0)).then_some(bytes.0);
    let of = |settings: Settings, needed: Bytes| SettingsReport {
        microbatch: settings.microbatch,
        recompute: settings.recompute.map(|policy| policy.to_string()),
        offload_activations: settings.offload.map(|place| place.to_string()),
        needed_bytes: needed.0,
    };
    AutomaticReport {
        device: place.clone(),
        memory_bytes: known(*memory),
        usable_bytes: known(choice.usable),
        chosen: of(choice.settings, choice.needed),
        faster: choice.faster.map(|(settings, needed)| of(settings, needed)),
    }
}

fn report(recipe: &Recipe, forecast: &Forecast, target: &Target, world: &World) -> Report {
    let blueprint = describe(&recipe.model);
    let seconds = |part: fn(&lockstep_planner::time::StepTime) -> Seconds| {
        forecast.step.as_ref().map(|step| part(step).0)
    };
    let step_seconds = forecast.step_seconds().map(|seconds| seconds.0);
    let tokens_per_second = forecast.tokens_per_second().map(|speed| speed.0);
    let workers = recipe.run.workers as f64;
    let machine = calibration_file::load(recipe, world).ok();
    let machine = machine.as_ref().and_then(|machine| machine.with(recipe.precision.compute));
    let peak = machine.map(|machine| machine.peak());
    let by_block = activations_by_block(recipe, &blueprint);
    let wire = |rank| traffic::total(rank).wire_bytes().0;
    Report {
        feasible: true,
        num_params: blueprint.num_params() as u64,
        memory: Memory::from(&forecast.memory.ranks[0]),
        memory_by_rank: forecast.memory.ranks.iter().map(Memory::from).collect(),
        activations_by_block: by_block
            .into_iter()
            .map(|(block, bytes)| BlockBytes { block, bytes: bytes.0 })
            .collect(),
        peak_step: forecast.memory.peak_step,
        peak_process: ProcessReport::from(forecast.largest_process().1),
        peak_process_bytes: forecast.peak_bytes().0,
        peak_process_bytes_by_rank: forecast.peak_by_rank().iter().map(|peak| peak.0).collect(),
        device_bytes_by_rank: prediction::is_accelerated(recipe)
            .then(|| forecast.memory.on_accelerators().iter().map(|peak| peak.0).collect()),
        wire_bytes: forecast.wire_bytes().0,
        wire_bytes_by_rank: forecast.traffic.iter().map(wire).collect(),
        wire_bytes_least: forecast.wire_range().low.0,
        wire_is_exact: forecast.is_exact() && recipe.unmodelled_traffic().is_none(),
        traffic_by_rank: forecast
            .traffic
            .iter()
            .map(|rank| rank.iter().map(|(op, counts)| (op.to_string(), bytes(counts))).collect())
            .collect(),
        step_seconds,
        why_no_time: step_seconds.is_none().then(|| why_no_time(recipe, target, world)),
        compute_seconds: seconds(|step| step.compute),
        update_seconds: seconds(|step| step.update),
        communication_seconds: seconds(|step| step.communication),
        exposed_communication_seconds: seconds(|step| step.exposed),
        bubble_fraction: forecast.step.map_or(0.0, |step| step.bubble),
        mfu: forecast.step.zip(peak).map(|(step, peak)| step.peak_share(peak)),
        tokens_per_second,
        tokens_per_second_per_device: tokens_per_second.map(|speed| speed / workers),
        tflops_per_device: forecast
            .step
            .map(|step| (step.flops / step.seconds()).0 / workers / 1e12),
        batch: recipe.train.batch,
        steps: recipe.train.steps,
        context: recipe.model.context,
        precision: recipe.precision.compute.name(),
        days: step_seconds.map(|seconds| seconds * recipe.train.steps as f64 / 86_400.0),
        dollars: None,
        automatic: target.settings.as_ref().map(automatic_report),
        layout: layout(recipe),
        alternatives: Vec::new(),
    }
}

fn layout(recipe: &Recipe) -> LayoutReport {
    let parallel = &recipe.parallel;
    LayoutReport {
        brief: layout_from_recipe(recipe).to_string(),
        workers: recipe.run.workers,
        tensor: parallel.tensor,
        sequence: parallel.sequence,
        pipeline: parallel.pipeline,
        virtual_stages: parallel.virtual_stages,
        schedule: parallel.schedule.to_string(),
        data: parallel.data,
        zero: parallel.zero,
        microbatch: recipe.train.microbatch_size,
        recompute: parallel.recompute.to_string(),
    }
}

fn bytes(counts: &TrafficCounts) -> Traffic {
    Traffic {
        calls: counts.calls,
        messages: counts.messages,
        sent_bytes: counts.sent.0,
        received_bytes: counts.received.0,
        read_bytes: counts.read.0,
        written_bytes: counts.written.0,
    }
}

fn render(
    recipe: &Recipe,
    forecast: &Forecast,
    report: &Report,
    target: &Target,
    section: Section,
) -> String {
    let mut text = String::new();
    let workers = recipe.run.workers;
    let plural = if workers == 1 { "" } else { "s" };
    let _ = writeln!(
        text,
        "{} parameters on {workers} worker{plural}: {}\n({LEGEND})\n\
         global batch {} sequences, sequence length {}, {} tokens per step, {}\n",
        report.num_params,
        report.layout.brief,
        report.batch,
        report.context,
        report.batch * report.context,
        report.precision,
    );
    if let Some(line) = epochs::render_line(recipe) {
        let _ = writeln!(text, "{line}");
    }
    if let Some(settings) = &target.settings {
        let _ = writeln!(text, "{settings}\n");
    }
    if section != Section::Time {
        render_memory(recipe, forecast, target, &mut text);
    }
    if section == Section::Memory {
        return text;
    }
    if let Some(cause) = recipe.unmodelled_traffic() {
        let _ = writeln!(text, "communication of {cause} is not counted\n");
    } else {
        render_traffic(forecast, &mut text);
    }
    render_time(recipe, forecast, report, &mut text);
    text
}

fn render_memory(recipe: &Recipe, forecast: &Forecast, target: &Target, text: &mut String) {
    let _ = writeln!(
        text,
        "memory  {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10}",
        "weights", "gradients", "optimizer", "activations", "buffers", "checkpoint", "total"
    );
    for (rank, memory) in forecast.memory.ranks.iter().enumerate() {
        let cell = |bytes: Bytes| bytes.to_string();
        let name = match rank.checked_sub(recipe.run.workers) {
            None => format!("rank {rank:<2}"),
            Some(server) => format!("server {server}"),
        };
        let _ = writeln!(
            text,
            "{name:<8}{:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10}",
            cell(memory.weights),
            cell(memory.gradients),
            cell(memory.optimizer),
            cell(memory.activations),
            cell(memory.buffers),
            cell(memory.checkpoint),
            cell(memory.allocated()),
        );
    }
    if forecast.memory.ranks.iter().any(|rank| rank.checkpoint > Bytes(0)) {
        text.push_str(
            "checkpoint: copy of a rank's shard, from the first checkpoint on, while training \
             continues\n",
        );
    }
    let step = forecast.memory.peak_step;
    if prediction::is_accelerated(recipe) {
        let device = target.named.clone().or_else(|| accelerator(recipe).ok().flatten());
        let device =
            device.map_or_else(String::new, |Accelerator { name, memory_bytes, .. }| {
                format!("; {name} has {}", Bytes(memory_bytes))
            });
        let bytes = prediction::device_bytes(forecast);
        let _ = writeln!(
            text,
            "peak on the device of the largest rank: {bytes}, reached from step {step} on{device}\n"
        );
        return;
    }
    let (rank, process) = forecast.largest_process();
    let ranks = match recipe.run.isolation {
        Isolation::Threads => "all ranks".to_owned(),
        Isolation::Processes => format!("rank {rank}"),
    };
    let _ = writeln!(
        text,
        "peak of the largest process: {}, reached from step {step} on\n\
         = {} of {ranks} + {} of mapped pages and scratch of calls + {} of code, corpus and \
         buffers of the process\n",
        process.total(),
        process.ranks,
        process.mapped,
        process.overhead,
    );
}

fn render_traffic(forecast: &Forecast, text: &mut String) {
    let busiest = forecast.traffic.iter().max_by_key(|rank| traffic::total(rank).wire_bytes());
    let sent = busiest.into_iter().flatten().filter(|(_, m)| m.wire_bytes() > Bytes(0));
    let mut any = false;
    for (op, counts) in sent {
        any = true;
        let _ = writeln!(
            text,
            "per step {:>5} x {:<21} {:>10} sent by the busiest rank",
            // Local SGD synchronizes less than once per step.
            if counts.calls == 0 { "< 1".to_owned() } else { counts.calls.to_string() },
            op.to_string(),
            si_bytes(counts.wire_bytes().0),
        );
    }
    if any {
        let _ = match forecast.wire_range() {
            range if range.is_exact() => {
                writeln!(text, "in total exactly {}\n", si_bytes(range.high.0))
            }
            ByteRange { low, high } => {
                writeln!(text, "in total {} to {}\n", si_bytes(low.0), si_bytes(high.0))
            }
        };
    }
}

fn render_time(recipe: &Recipe, forecast: &Forecast, report: &Report, text: &mut String) {
    let (Some(step), Some(speed)) = (&forecast.step, forecast.tokens_per_second()) else {
        if recipe.unmodelled_traffic().is_none() {
            let why = report.why_no_time.as_deref().unwrap_or("");
            let _ = writeln!(text, "time    unknown: {why}");
        }
        return;
    };
    let bubble = match recipe.parallel.pipeline {
        1 => "",
        _ => " with the pipeline bubble",
    };
    let _ = writeln!(
        text,
        "time    {} per step: {} compute{bubble}, {} optimizer, {} of {} communication exposed\n\
         speed   {speed}, {} tokens/s and {} TFLOP/s per worker, MFU {}; {} steps take {}",
        step.seconds(),
        step.compute,
        step.update,
        step.exposed,
        step.communication,
        digits(report.tokens_per_second_per_device.unwrap_or(f64::NAN)),
        digits(report.tflops_per_device.unwrap_or(f64::NAN)),
        percent(report.mfu.unwrap_or(f64::NAN)),
        recipe.train.steps,
        step.seconds() * recipe.train.steps as f64,
    );
}
