//! Pipelines as plain data: which device runs which pass of which microbatch, in which order.
//!
//! A model is cut into stages, and a device holds one stage or several (*chunks*). A schedule is a
//! list of [`Task`]s for every device; what a task must wait for follows from the model, not from
//! the schedule: a forward pass waits for the stage before, a backward pass for the stage behind.
//! So a schedule says nothing about time, and can be run, played at any pace, drawn and checked.
//!
//! | schedule | idle time of a device | microbatches whose activations it keeps |
//! |---|---|---|
//! | [`gpipe`] | (p-1)(F+B) | m |
//! | [`one_f_one_b`] | (p-1)(F+B) | p |
//! | [`interleaved`] | (p-1)(F+B)/v | p + (p-1)/v |
//! | [`zero_bubble`], as much memory | (p-1)(F+I-W) | p |
//! | [`zero_bubble`], twice the memory | (p-1)(F+I-2W) or less | 2p-1 |
//! | [`chimera`], the weights twice | about half of 1F1B's | p |
//! | [`pipedream`], p versions of the weights | none once it is full | p |
//!
//! p devices, m microbatches, v chunks a device; F forward, B = I + W backward, of which I is the
//! gradient of the input and W that of the weights; transfers take no time.
//!
//! Every schedule adds up weight gradients in ascending order of microbatches, so that the sums do
//! not depend on it; [`verify`] proves that, and that nobody waits for ever.
//!
//! ```
//! use lockstep_schedule::pipeline::{Kind, Shape, build, verify};
//!
//! let shape = Shape { num_devices: 2, num_chunks: 1, num_microbatches: 3 };
//! let pipeline = build(Kind::OneFOneB, shape)?;
//! assert_eq!(pipeline.to_string(), "\
//! 1f1b, 2 devices, 3 microbatches
//! 0  F0 F1 B0 F2 B1 B2
//! 1  F0 B0 F1 B1 F2 B2
//! ");
//! assert_eq!(verify(&pipeline), Ok(()));
//! # Ok::<(), lockstep_schedule::pipeline::PipelineError>(())
//! ```

pub mod chimera;
pub mod forward;
pub mod gpipe;
pub mod interleaved;
pub mod one_f_one_b;
pub mod pipedream;
pub mod zero_bubble;

mod dependencies;
mod greedy;
mod verify;

pub use dependencies::{comes_from, goes_to, needs, settled};
pub use verify::{InvalidPipeline, verify};

use lockstep_config::Blame;
use std::fmt;
use std::str::FromStr;

/// Buffers of a device for what it sends: with all of them on their way it waits. [`verify`] proves
/// that they are enough.
pub const NUM_SEND_BUFFERS: usize = 2;

/// What a device does at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// From the input of a stage to its output.
    Forward,
    /// Both gradients, in one piece.
    Backward,
    /// The gradient of the stage's input: what the stage before waits for.
    InputGrad,
    /// The gradient of the stage's weights: what nobody waits for.
    WeightGrad,
}

/// One pass of one microbatch through one of the device's stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// Which pass.
    pub pass: Pass,
    /// Which microbatch, counted from 0.
    pub microbatch: usize,
    /// Which of the device's stages, counted from 0.
    pub chunk: usize,
}

/// How large a pipeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Devices (p).
    pub num_devices: usize,
    /// Stages of each device (v).
    pub num_chunks: usize,
    /// Microbatches of a step (m).
    pub num_microbatches: usize,
}

/// The schedules by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward in turn.
    OneFOneB,
    /// The same with several stages a device.
    Interleaved,
    /// Weight gradients fill the gaps; as much memory as 1F1B (H1).
    ZeroBubble,
    /// The same with twice the memory (H2).
    ZeroBubbleTwice,
    /// Two pipelines in opposite directions, with the model there twice.
    Chimera,
    /// One forward, one backward in turn for ever, with old versions of the weights.
    PipeDream,
}

/// A program for each device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// How it was made.
    pub kind: Kind,
    /// How large it is.
    pub shape: Shape,
    /// What each device does, in this order.
    pub programs: Vec<Vec<Task>>,
}

/// Why there is no such pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// Nothing to run, or nobody to run it.
    #[error("a pipeline needs at least one device, one chunk and one microbatch")]
    Empty,
    /// The schedule is for one stage a device.
    #[error("{kind} has one stage a device, not {num_chunks}; try interleaved")]
    SeveralChunks {
        /// What was asked for.
        kind: Kind,
        /// Stages that were asked for.
        num_chunks: usize,
    },
}

impl PipelineError {
    /// Who must act: whoever asked for it.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

/// Makes a schedule.
pub fn build(kind: Kind, shape: Shape) -> Result<Pipeline, PipelineError> {
    let Shape { num_devices, num_chunks, num_microbatches } = shape;
    if num_devices * num_chunks * num_microbatches == 0 {
        return Err(PipelineError::Empty);
    }
    if kind != Kind::Interleaved && num_chunks > 1 {
        return Err(PipelineError::SeveralChunks { kind, num_chunks });
    }
    let each = |program: &dyn Fn(usize) -> Vec<Task>| (0..num_devices).map(program).collect();
    let programs = match kind {
        Kind::GPipe => each(&|_| gpipe::program(shape)),
        Kind::OneFOneB => each(&|device| one_f_one_b::program(shape, device)),
        Kind::Interleaved => each(&|device| interleaved::program(shape, device)),
        Kind::ZeroBubble => each(&|device| zero_bubble::program(shape, device, 1)),
        Kind::ZeroBubbleTwice => each(&|device| zero_bubble::program(shape, device, 2)),
        Kind::Chimera => chimera::pipeline(shape).programs,
        Kind::PipeDream => each(&|device| pipedream::program(shape, device)),
    };
    Ok(Pipeline { kind, shape, programs })
}

impl Shape {
    /// How many stages the model is cut into.
    pub const fn num_stages(self) -> usize {
        self.num_devices * self.num_chunks
    }

    /// The stage that is a device's `chunk`-th: stages go round the devices.
    pub const fn stage(self, device: usize, chunk: usize) -> usize {
        chunk * self.num_devices + device
    }

    /// The device that a stage is on.
    pub const fn device(self, stage: usize) -> usize {
        stage % self.num_devices
    }
}

impl Pipeline {
    /// The stage that is a device's `chunk`-th. Devices of [`Kind::Chimera`] have one of each
    /// direction.
    pub fn stage(&self, device: usize, chunk: usize) -> usize {
        match (self.kind, chunk) {
            (Kind::Chimera, 1) => self.shape.num_devices - 1 - device,
            _ => self.shape.stage(device, chunk),
        }
    }

    /// The device on which a microbatch passes through a stage.
    pub fn device(&self, stage: usize, microbatch: usize) -> usize {
        let goes_up = || chimera::microbatches(self.shape, 1).contains(&microbatch);
        if self.kind == Kind::Chimera && goes_up() {
            return self.shape.num_devices - 1 - stage;
        }
        self.shape.device(stage)
    }

    /// Stages that each device has.
    pub const fn num_chunks(&self) -> usize {
        if matches!(self.kind, Kind::Chimera) { 2 } else { self.shape.num_chunks }
    }

    /// The most microbatches whose activations a device keeps of each of its stages at a time.
    pub fn live(&self, device: usize) -> Vec<usize> {
        let (mut live, mut most) = (vec![0_usize; self.num_chunks()], vec![0; self.num_chunks()]);
        for task in &self.programs[device] {
            match task.pass {
                Pass::Forward => live[task.chunk] += 1,
                Pass::Backward | Pass::WeightGrad => live[task.chunk] -= 1,
                Pass::InputGrad => {}
            }
            most[task.chunk] = most[task.chunk].max(live[task.chunk]);
        }
        most
    }

    /// The most microbatches of each of a device's stages whose gradients of inputs are computed
    /// and those of weights are not; none where backward comes in one piece.
    pub fn deferred_weight_grads(&self, device: usize) -> Vec<usize> {
        let (mut now, mut most) = (vec![0_usize; self.num_chunks()], vec![0; self.num_chunks()]);
        for task in &self.programs[device] {
            match task.pass {
                Pass::InputGrad => now[task.chunk] += 1,
                Pass::WeightGrad => now[task.chunk] -= 1,
                Pass::Forward | Pass::Backward => {}
            }
            most[task.chunk] = most[task.chunk].max(now[task.chunk]);
        }
        most
    }

    /// Versions of its weights that a device must keep: one for each direction of a pipeline that
    /// drains, one for each microbatch in flight of one that does not.
    pub fn weight_versions(&self, device: usize) -> usize {
        match self.kind {
            Kind::PipeDream => self.live(device).into_iter().sum(),
            Kind::Chimera => 2,
            _ => 1,
        }
    }
}

impl Task {
    const fn new(pass: Pass, microbatch: usize, chunk: usize) -> Self {
        Self { pass, microbatch, chunk }
    }
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::ZeroBubble,
        Self::ZeroBubbleTwice,
        Self::Chimera,
        Self::PipeDream,
    ];
}

impl Kind {
    /// Whether the engine runs it: the others give other sums than one worker.
    pub const fn is_run(self) -> bool {
        !matches!(self, Self::Chimera | Self::PipeDream)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
            Self::ZeroBubbleTwice => "zero-bubble-2x",
            Self::Chimera => "chimera",
            Self::PipeDream => "pipedream",
        })
    }
}

/// A text that names no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no schedule; try {}", Kind::ALL.map(|kind| kind.to_string()).join(", "))]
pub struct UnknownKind {
    /// What was written.
    pub text: String,
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let named = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        named.ok_or_else(|| UnknownKind { text: text.to_owned() })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.pass {
            Pass::Forward => 'F',
            Pass::Backward => 'B',
            Pass::InputGrad => 'I',
            Pass::WeightGrad => 'W',
        };
        write!(f, "{letter}{}", self.microbatch)?;
        // A second stage of the same device has a mark, a third two.
        (0..self.chunk).try_for_each(|_| f.write_str("'"))
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { num_devices, num_chunks, num_microbatches } = self.shape;
        write!(f, "{}, {num_devices} devices, ", self.kind)?;
        if num_chunks > 1 {
            write!(f, "{num_chunks} chunks each, ")?;
        }
        writeln!(f, "{num_microbatches} microbatches")?;
        for (device, program) in self.programs.iter().enumerate() {
            let tasks: Vec<String> = program.iter().map(Task::to_string).collect();
            writeln!(f, "{device}  {}", tasks.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_a_wrong_one_lists_them() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(
            "2f1b".parse::<Kind>().unwrap_err().to_string(),
            "`2f1b` is no schedule; try gpipe, 1f1b, interleaved, zero-bubble, zero-bubble-2x, \
             chimera, pipedream"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let shape =
            |num_chunks, num_microbatches| Shape { num_devices: 4, num_chunks, num_microbatches };
        let refusal = |kind, shape| build(kind, shape).unwrap_err().to_string();
        let chunks = refusal(Kind::OneFOneB, shape(2, 8));
        assert_eq!(chunks, "1f1b has one stage a device, not 2; try interleaved");
        assert_eq!(build(Kind::GPipe, shape(1, 0)), Err(PipelineError::Empty));
    }
}
