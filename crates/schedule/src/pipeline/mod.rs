//! Pipeline schedules as plain data: the passes of every device, in order.
//!
//! A model is split into stages, and a device holds one stage or several (*virtual stages*, or
//! chunks). A schedule is a list of [`Task`]s per device. Dependencies follow from the model, not
//! from the schedule: a forward pass needs the previous stage, a backward pass the next one. A
//! schedule therefore says nothing about time, and can be run, simulated, drawn and verified.
//!
//! | schedule | bubble of a device | live micro-batches |
//! |---|---|---|
//! | [`gpipe`] | (p-1)(F+B) | m |
//! | [`one_f_one_b`] | (p-1)(F+B) | p |
//! | [`interleaved`] | (p-1)(F+B)/v | p + (p-1)/v |
//! | [`zero_bubble`], ZB-H1 | (p-1)(F+I-W) | p |
//! | [`zero_bubble`], ZB-H2 | (p-1)(F+I-2W) or less | 2p-1 |
//! | [`chimera`], two replicas of the weights | about half of 1F1B's | p |
//! | [`pipedream`], p versions of the weights | none after the warm-up | p |
//!
//! p devices, m micro-batches, v virtual stages per device; F forward, B = I + W backward, of which
//! I is the input gradient and W the weight gradient; transfers take no time.
//!
//! Every schedule accumulates weight gradients in ascending order of micro-batches, so that the
//! sums do not depend on it; [`verify`] proves that, and that there is no deadlock.
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

/// Send buffers of a device; when all are in flight it waits. [`verify`] proves that they suffice.
pub const NUM_SEND_BUFFERS: usize = 2;

/// Kind of pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// Forward pass of a stage.
    Forward,
    /// Input and weight gradients together.
    Backward,
    /// Input gradient, which the previous stage waits for.
    InputGrad,
    /// Weight gradient, which no other stage waits for.
    WeightGrad,
}

/// One pass of one micro-batch through one of the device's stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// Kind of pass.
    pub pass: Pass,
    /// Micro-batch, counted from 0.
    pub microbatch: usize,
    /// Virtual stage of the device, counted from 0.
    pub chunk: usize,
}

/// Size of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Devices (p).
    pub num_devices: usize,
    /// Virtual stages per device (v).
    pub num_chunks: usize,
    /// Micro-batches per step (m).
    pub num_microbatches: usize,
}

/// Pipeline schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward, alternating.
    OneFOneB,
    /// 1F1B with several virtual stages per device.
    Interleaved,
    /// Deferred weight gradients fill the bubble, within the memory of 1F1B (ZB-H1).
    ZeroBubble,
    /// Deferred weight gradients fill the bubble, with twice the memory of 1F1B (ZB-H2).
    ZeroBubbleTwice,
    /// Two pipelines in opposite directions, with two replicas of the model.
    Chimera,
    /// 1F1B without flushes, with several versions of the weights.
    PipeDream,
}

/// Program of each device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// Schedule.
    pub kind: Kind,
    /// Size of the pipeline.
    pub shape: Shape,
    /// Passes of each device, in order.
    pub programs: Vec<Vec<Task>>,
}

/// Reason that a pipeline cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// No device, stage or micro-batch.
    #[error("a pipeline needs at least one device, one chunk and one microbatch")]
    Empty,
    /// The schedule has one stage per device.
    #[error("{kind} has one stage per device, not {num_chunks}; try interleaved")]
    SeveralChunks {
        /// Requested schedule.
        kind: Kind,
        /// Requested virtual stages.
        num_chunks: usize,
    },
}

impl PipelineError {
    /// Blame: the user chose the schedule.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

/// Builds a schedule.
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
    /// Number of stages of the model.
    pub const fn num_stages(self) -> usize {
        self.num_devices * self.num_chunks
    }

    /// Stage of a device's virtual stage `chunk`: stages are assigned to devices round-robin.
    pub const fn stage(self, device: usize, chunk: usize) -> usize {
        chunk * self.num_devices + device
    }

    /// Device of a stage.
    pub const fn device(self, stage: usize) -> usize {
        stage % self.num_devices
    }
}

impl Pipeline {
    /// Stage of a device's virtual stage `chunk`. Devices of [`Kind::Chimera`] have one stage per
    /// direction.
    pub fn stage(&self, device: usize, chunk: usize) -> usize {
        match (self.kind, chunk) {
            (Kind::Chimera, 1) => self.shape.num_devices - 1 - device,
            _ => self.shape.stage(device, chunk),
        }
    }

    /// Device on which a micro-batch passes a stage.
    pub fn device(&self, stage: usize, microbatch: usize) -> usize {
        let goes_up = || chimera::microbatches(self.shape, 1).contains(&microbatch);
        if self.kind == Kind::Chimera && goes_up() {
            return self.shape.num_devices - 1 - stage;
        }
        self.shape.device(stage)
    }

    /// Virtual stages per device.
    pub const fn num_chunks(&self) -> usize {
        if matches!(self.kind, Kind::Chimera) { 2 } else { self.shape.num_chunks }
    }

    /// Peak number of live micro-batches of each of a device's stages.
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

    /// Peak number of deferred weight gradients of each of a device's stages; zero where backward
    /// is not split.
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

    /// Versions of the weights that a device keeps: one per direction with flushes, one per
    /// micro-batch in flight without.
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
    /// All schedules.
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
    /// Whether the engine runs the schedule; the others give other sums than one worker.
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

/// Unknown schedule name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no schedule; try {}", Kind::ALL.map(|kind| kind.to_string()).join(", "))]
pub struct UnknownKind {
    /// Text that was given.
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
        // Each further virtual stage of a device adds a prime.
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
    fn impossible_shapes_are_rejected_with_an_alternative() {
        let shape =
            |num_chunks, num_microbatches| Shape { num_devices: 4, num_chunks, num_microbatches };
        let refusal = |kind, shape| build(kind, shape).unwrap_err().to_string();
        let chunks = refusal(Kind::OneFOneB, shape(2, 8));
        assert_eq!(chunks, "1f1b has one stage per device, not 2; try interleaved");
        assert_eq!(build(Kind::GPipe, shape(1, 0)), Err(PipelineError::Empty));
    }
}
