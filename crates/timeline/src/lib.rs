//! A pipeline schedule played event by event: when every pass begins and ends, who idles, and how
//! many microbatches are alive.
//!
//! A device runs its program in order; a pass begins when the device is free and what it waits for
//! has arrived. A transfer to another device takes its time but keeps neither end busy. Nothing is
//! assumed about stages: each has times of its own, and the slowest sets the pace by itself.

mod draw;
mod svg;

pub use draw::draw;
pub use svg::{svg, svg_headed};

use lockstep_config::units::Seconds;
use lockstep_schedule::pipeline::{Pass, Pipeline, Shape, Task, needs, settled};

/// How long the passes of one stage take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StagePace {
    /// Forward.
    pub forward: Seconds,
    /// The gradient of the input.
    pub input_grad: Seconds,
    /// The gradient of the weights.
    pub weight_grad: Seconds,
}

/// How long things take.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// By stage.
    pub stages: Vec<StagePace>,
    /// From the end of a pass to the moment that the next stage can use it, on another device.
    pub hop: Seconds,
}

/// A pass with its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// What.
    pub task: Task,
    /// When it begins.
    pub start: Seconds,
    /// When it is over.
    pub end: Seconds,
}

/// When everything happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The schedule that was played.
    pub pipeline: Pipeline,
    /// The passes of each device, in order.
    pub devices: Vec<Vec<Span>>,
}

impl Pace {
    /// Times of a device's whole share of the model, divided evenly among its stages.
    pub fn even(shape: Shape, device: StagePace, hop: Seconds) -> Self {
        let share = 1.0 / shape.num_chunks as f64;
        let stage = StagePace {
            forward: device.forward * share,
            input_grad: device.input_grad * share,
            weight_grad: device.weight_grad * share,
        };
        Self { stages: vec![stage; shape.num_stages()], hop }
    }

    fn seconds(&self, stage: usize, pass: Pass) -> Seconds {
        let StagePace { forward, input_grad, weight_grad } = self.stages[stage];
        match pass {
            Pass::Forward => forward,
            Pass::Backward => input_grad + weight_grad,
            Pass::InputGrad => input_grad,
            Pass::WeightGrad => weight_grad,
        }
    }
}

/// Plays a schedule; nothing if it never ends.
pub fn play(pipeline: &Pipeline, pace: &Pace) -> Option<Timeline> {
    let shape = pipeline.shape;
    assert_eq!(pace.stages.len(), shape.num_stages(), "a pace for every stage");
    let mut devices: Vec<Vec<Span>> = vec![Vec::new(); shape.num_devices];
    let mut ends = Ends::new(shape);
    loop {
        let mut has_moved = false;
        for (device, spans) in devices.iter_mut().enumerate() {
            while let Some(&task) = pipeline.programs[device].get(spans.len()) {
                let stage = pipeline.stage(device, task.chunk);
                let Some(arrived) = arrival(shape, pace, &mut ends, stage, task) else { break };
                let start = spans.last().map_or(Seconds(0.0), |last| last.end).max(arrived);
                let end = start + pace.seconds(stage, task.pass);
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
    is_done.then(|| Timeline { pipeline: pipeline.clone(), devices })
}

/// When passes are over, by stage, pass and microbatch.
struct Ends {
    num_microbatches: usize,
    ends: Vec<Option<Seconds>>,
}

impl Ends {
    /// Passes that others may wait for, of each stage and microbatch.
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

/// When everything that a task waits for is there, if that is known yet.
fn arrival(
    shape: Shape,
    pace: &Pace,
    ends: &mut Ends,
    stage: usize,
    task: Task,
) -> Option<Seconds> {
    let mut arrived = Seconds(0.0);
    for (needed, pass) in needs(shape, stage, task.pass).into_iter().flatten() {
        let end = (*ends.at(needed, pass, task.microbatch))?;
        let is_here = (needed % shape.num_devices) == (stage % shape.num_devices);
        arrived = arrived.max(if is_here { end } else { end + pace.hop });
    }
    Some(arrived)
}

impl Timeline {
    /// From the first start to the last end.
    pub fn seconds(&self) -> Seconds {
        self.devices
            .iter()
            .filter_map(|spans| spans.last())
            .fold(Seconds(0.0), |end, span| end.max(span.end))
    }

    /// The longest time that one device takes from its first pass to its last: how often steps can
    /// follow each other where devices need not wait for each other between them.
    pub fn cycle_seconds(&self) -> Seconds {
        let span = |spans: &Vec<Span>| Some(spans.last()?.end - spans.first()?.start);
        self.devices.iter().filter_map(span).fold(Seconds(0.0), Seconds::max)
    }

    /// How long a device works.
    pub fn busy_seconds(&self, device: usize) -> Seconds {
        self.devices[device].iter().map(|span| span.end - span.start).sum()
    }

    /// Share of all devices' time in which they idle.
    pub fn bubble(&self) -> f64 {
        self.idle_share(self.seconds())
    }

    /// The same, where a device may go on to the next step while others are still in this one.
    pub fn cycle_bubble(&self) -> f64 {
        self.idle_share(self.cycle_seconds())
    }

    fn idle_share(&self, all: Seconds) -> f64 {
        let busy: Seconds = (0..self.devices.len()).map(|device| self.busy_seconds(device)).sum();
        1.0 - busy / (all * self.devices.len() as f64)
    }

    /// How many microbatches a device keeps activations of, after each of its passes; one of v
    /// stages counts as a v-th. They are kept from the start of forward to the end of the pass that
    /// needs them last.
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

    /// The most of them at any time.
    pub fn peak_live_microbatches(&self, device: usize) -> f64 {
        self.live_microbatches(device).fold(0.0, f64::max)
    }
}
