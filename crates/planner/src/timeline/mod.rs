//! Event simulation of a pipeline schedule: start and end of every pass, the bubble, and live
//! micro-batches.
//!
//! A device runs its program in order; a pass starts when the device is free and its dependencies
//! have arrived. A transfer to another device takes time but occupies neither end. Stages may
//! differ: each has its own times, and the slowest sets the throughput.

mod draw;
mod svg;

pub use draw::draw;
pub use svg::{svg, svg_with_title};

use lockstep_config::units::Seconds;
use lockstep_schedule::pipeline::{Kind, Pass, Pipeline, Shape, Task, build, needs, settled};

/// Durations of a stage's passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageTimes {
    /// Forward pass.
    pub forward: Seconds,
    /// Input gradient.
    pub input_grad: Seconds,
    /// Weight gradient.
    pub weight_grad: Seconds,
}

/// Durations of all passes and transfers.
#[derive(Debug, Clone, PartialEq)]
pub struct PassTimes {
    /// Durations by stage.
    pub stages: Vec<StageTimes>,
    /// Time from the end of a pass until a stage on another device can use its output.
    pub hop: Seconds,
}

/// A pass with its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Pass.
    pub task: Task,
    /// Start of the pass.
    pub start: Seconds,
    /// End of the pass.
    pub end: Seconds,
}

/// Start and end of every pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Simulated schedule.
    pub pipeline: Pipeline,
    /// Passes of each device, in order.
    pub devices: Vec<Vec<Span>>,
    /// Time that these micro-batches take once the pipeline is full, where it never drains.
    steady: Option<Seconds>,
}

impl PassTimes {
    /// Durations of a device's whole share of the model, divided evenly among its stages.
    pub fn even(shape: Shape, device: StageTimes, hop: Seconds) -> Self {
        let share = 1.0 / shape.num_chunks as f64;
        let stage = StageTimes {
            forward: device.forward * share,
            input_grad: device.input_grad * share,
            weight_grad: device.weight_grad * share,
        };
        Self { stages: vec![stage; shape.num_stages()], hop }
    }

    fn seconds(&self, stage: usize, pass: Pass) -> Seconds {
        let StageTimes { forward, input_grad, weight_grad } = self.stages[stage];
        match pass {
            Pass::Forward => forward,
            Pass::Backward => input_grad + weight_grad,
            Pass::InputGrad => input_grad,
            Pass::WeightGrad => weight_grad,
        }
    }
}

/// Simulates a schedule; `None` if it deadlocks.
pub fn simulate(pipeline: &Pipeline, times: &PassTimes) -> Option<Timeline> {
    let mut timeline = play(pipeline, times)?;
    if pipeline.kind == Kind::PipeDream {
        // A few rounds fill the pipeline; these micro-batches follow.
        let fill = FILLING_ROUNDS * pipeline.shape.num_devices;
        let until = |num_microbatches: usize| {
            let shape = Shape { num_microbatches, ..pipeline.shape };
            Some(play(&build(pipeline.kind, shape).ok()?, times)?.seconds())
        };
        timeline.steady = Some(until(fill + pipeline.shape.num_microbatches)? - until(fill)?);
    }
    Some(timeline)
}

/// Rounds of as many micro-batches as devices after which a pipeline without flushes is periodic.
const FILLING_ROUNDS: usize = 4;

/// Start and end of every pass, or `None` if they wait for each other.
fn play(pipeline: &Pipeline, times: &PassTimes) -> Option<Timeline> {
    let shape = pipeline.shape;
    assert_eq!(times.stages.len(), shape.num_stages(), "durations of every stage");
    let mut devices: Vec<Vec<Span>> = vec![Vec::new(); shape.num_devices];
    let mut ends = Ends::new(shape);
    loop {
        let mut has_moved = false;
        for (device, spans) in devices.iter_mut().enumerate() {
            while let Some(&task) = pipeline.programs[device].get(spans.len()) {
                let stage = pipeline.stage(device, task.chunk);
                let Some(arrived) = arrival(shape, times, &mut ends, stage, task) else { break };
                let start = spans.last().map_or(Seconds(0.0), |last| last.end).max(arrived);
                let end = start + times.seconds(stage, task.pass);
                spans.push(Span { task, start, end });
                *ends.at(stage, settled(task.pass), task.microbatch) = Some(end);
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    let is_done = devices.iter().zip(&pipeline.programs).all(|(d, p)| d.len() == p.len());
    is_done.then(|| Timeline { pipeline: pipeline.clone(), devices, steady: None })
}

/// End of each pass, by stage, pass and micro-batch.
struct Ends {
    num_microbatches: usize,
    ends: Vec<Option<Seconds>>,
}

impl Ends {
    /// Passes that others may depend on, per stage and micro-batch.
    const NUM_PASSES: usize = 4;

    fn new(shape: Shape) -> Self {
        let num_microbatches = shape.num_microbatches;
        let len = shape.num_stages() * Self::NUM_PASSES * num_microbatches;
        Self { num_microbatches, ends: vec![None; len] }
    }

    fn at(&mut self, stage: usize, pass: Pass, microbatch: usize) -> &mut Option<Seconds> {
        let row = stage * Self::NUM_PASSES + pass as usize;
        &mut self.ends[row * self.num_microbatches + microbatch]
    }
}

/// Time at which all dependencies of a task have arrived, if known yet.
fn arrival(
    shape: Shape,
    times: &PassTimes,
    ends: &mut Ends,
    stage: usize,
    task: Task,
) -> Option<Seconds> {
    let mut arrived = Seconds(0.0);
    for (needed, pass) in needs(shape, stage, task.pass).into_iter().flatten() {
        let end = (*ends.at(needed, pass, task.microbatch))?;
        let is_here = (needed % shape.num_devices) == (stage % shape.num_devices);
        arrived = arrived.max(if is_here { end } else { end + times.hop });
    }
    Some(arrived)
}

impl Timeline {
    /// Makespan: from the first start to the last end.
    pub fn seconds(&self) -> Seconds {
        self.devices
            .iter()
            .filter_map(|spans| spans.last())
            .fold(Seconds(0.0), |end, span| end.max(span.end))
    }

    /// Cycle time: the longest time of one device from its first pass to its last. Steps can follow
    /// each other at this interval where devices need not wait for each other between them. A
    /// schedule without flushes (PipeDream) fills and drains once in a run, which does not count.
    pub fn cycle_seconds(&self) -> Seconds {
        if let Some(steady) = self.steady {
            return steady;
        }
        let span = |spans: &Vec<Span>| Some(spans.last()?.end - spans.first()?.start);
        self.devices.iter().filter_map(span).fold(Seconds(0.0), Seconds::max)
    }

    /// Busy time of a device.
    pub fn busy_seconds(&self, device: usize) -> Seconds {
        self.devices[device].iter().map(|span| span.end - span.start).sum()
    }

    /// Bubble fraction: idle share of all devices' time.
    pub fn bubble(&self) -> f64 {
        self.idle_share(self.seconds())
    }

    /// Bubble fraction relative to the cycle time, where a device may start the next step while
    /// others are still in this one.
    pub fn cycle_bubble(&self) -> f64 {
        self.idle_share(self.cycle_seconds())
    }

    fn idle_share(&self, all: Seconds) -> f64 {
        let busy: Seconds = (0..self.devices.len()).map(|device| self.busy_seconds(device)).sum();
        1.0 - busy / (all * self.devices.len() as f64)
    }

    /// Live micro-batches of a device after each of its passes; one of v virtual stages counts as
    /// 1/v. Activations live from the start of the forward pass to the end of the last pass that
    /// needs them.
    pub fn live_microbatches(&self, device: usize) -> impl Iterator<Item = f64> {
        let share = 1.0 / self.pipeline.shape.num_chunks as f64;
        let mut live = 0.0;
        self.devices[device].iter().map(move |span| {
            let before = live;
            match span.task.pass {
                Pass::Forward => live += share,
                Pass::Backward | Pass::WeightGrad => live -= share,
                Pass::InputGrad => {}
            }
            f64::max(before, live)
        })
    }

    /// Versions of its weights that a device keeps: one, or under PipeDream one for every
    /// micro-batch in flight, which runs backward with the weights of its forward pass.
    pub fn weight_versions(&self, device: usize) -> usize {
        match self.pipeline.kind {
            Kind::PipeDream => self.peak_live_microbatches(device).ceil() as usize,
            _ => 1,
        }
    }

    /// Peak number of live micro-batches of a device.
    pub fn peak_live_microbatches(&self, device: usize) -> f64 {
        self.live_microbatches(device).fold(0.0, f64::max)
    }
}
