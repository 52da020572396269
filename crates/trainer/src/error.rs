//! Everything that can end a run early, with who must act.

use lockstep_checkpoint::CheckpointError;
use lockstep_comm::CommError;
use lockstep_config::Blame;
use lockstep_config::units::Bytes;
use lockstep_data::DataError;
use lockstep_platform::{FileError, ThreadError};
use lockstep_telemetry::TelemetryError;
use std::io::ErrorKind;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The text could not be read or does not fit the recipe.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Weights or training state could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run folder could not be written.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// The optimizer's state has no place on a disk.
    #[error("no place for {bytes} of optimizer state: {error}; set offload.folder to another disk")]
    NoRoom {
        /// What was to be kept there.
        bytes: Bytes,
        /// What the disk said.
        error: FileError,
    },
    /// The disk with the optimizer's state failed.
    #[error("the optimizer's state is lost: {0}; go on from the last checkpoint on another disk")]
    StateLost(FileError),
    /// The file of events could not be opened.
    #[error(transparent)]
    Events(#[from] TelemetryError),
    /// The other workers could not be reached, or failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Another thread was refused.
    #[error("{0}; lower sync.threads")]
    Threads(ThreadError),
    /// A run must not write over another.
    #[error("run.dir = {dir} is not a new or empty folder; choose one that is")]
    FolderTaken {
        /// The folder that was asked for.
        dir: String,
    },
    /// There is no step left to run.
    #[error(
        "nothing to train: {done} of {asked} steps are done already; ask for more with train.steps"
    )]
    NothingToDo {
        /// Steps that are done.
        done: u64,
        /// Steps that were asked for.
        asked: u64,
    },
    /// The recipe asks for instructions that this CPU lacks.
    #[error("run.isa = {asked} needs instructions that this CPU lacks; try auto, {others}")]
    Isa {
        /// What was asked for.
        asked: String,
        /// What this CPU has.
        others: String,
    },
    /// A group of parameters is empty.
    #[error(
        "{key}[{index}].match = \"{pattern}\" describes no parameter of this model; there are \
         {near}"
    )]
    NoSuchParams {
        /// The key that lists groups.
        key: &'static str,
        /// The group, counted from zero.
        index: usize,
        /// Its pattern.
        pattern: String,
        /// Names that it may have meant.
        near: String,
    },
    /// There is nothing left to train.
    #[error(
        "optim.groups freezes every parameter at step {step}; leave one trained, or set \
         train.steps = {step}"
    )]
    AllFrozen {
        /// The first step without anything to train.
        step: u64,
    },
    /// There is no model in a folder.
    #[error(
        "{dir} holds no finished run (no recipe.toml) and holds no model of Hugging Face (no \
         config.json)"
    )]
    NoModel {
        /// The folder that was looked into.
        dir: String,
    },
    /// The recipe is wrong: one line for each mistake.
    #[error("{0}")]
    Recipe(String),
    /// Two workers read different weights from folders of one name.
    #[error(
        "worker {worker} read another {tensor} from model.from = {dir} than worker 0; give all of \
         them the same files"
    )]
    FoldersDiffer {
        /// The folder.
        dir: String,
        /// The first worker that differs.
        worker: usize,
        /// The first tensor that differs.
        tensor: String,
    },
    /// A folder that weights are to be taken from has none of this model's.
    #[error(
        "model.from = {dir} has no tensor of this model, by name and shape; its first is {name}"
    )]
    NothingInCommon {
        /// The folder.
        dir: String,
        /// A tensor that it has.
        name: String,
    },
    /// The saved run was made by another recipe.
    #[error(
        "{dir} was trained with another recipe: {saved} there, {asked} here; only run.*, \
         parallel.*, offload.*, checkpoint.* and emulate.* may change"
    )]
    OtherRecipe {
        /// The run to resume.
        dir: String,
        /// The first of its settings that differs.
        saved: String,
        /// What the recipe has now in its place.
        asked: String,
    },
    /// A saved run would have been another one with so many steps.
    #[error(
        "with train.steps = {steps} the learning rate of step {step} would not have been that of \
         {dir}; optim.schedule = constant with the same optim.warmup_steps can go on, and --from \
         {dir} begins a new run with its weights"
    )]
    OtherRates {
        /// The run to resume.
        dir: String,
        /// The steps that are asked for.
        steps: u64,
        /// The first step that would differ, counted from zero.
        step: u64,
    },
    /// A longer run would have been cut into other rounds from a step on that is done already.
    #[error(
        "train.steps = {steps} would have had another round at step {step} of what is done in \
         {dir}; a run whose rounds are all of one length, sync.synchronous = 0, and that ends with \
         a whole one can go on, and --from {dir} begins a new run with its weights"
    )]
    OtherRounds {
        /// The run to resume.
        dir: String,
        /// The steps that are asked for.
        steps: u64,
        /// The first step that would differ, counted from zero.
        step: u64,
    },
    /// The recipe of a saved run could not be used.
    #[error("{path} cannot be used: {reason}")]
    SavedRecipe {
        /// The recipe file of the run.
        path: String,
        /// All that is wrong with it.
        reason: String,
    },
    /// The events of a saved run cannot be read.
    #[error("{path} cannot be read: {reason}; restore the file or train the run again")]
    SavedEvents {
        /// The event file of the run.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A run cannot be left where workers hold different weights.
    #[error(
        "--stop-after {asked} ends inside a round of sync.mode = \"local-sgd\"; try {before} or \
         {after}"
    )]
    InsideRound {
        /// Where the run was to end.
        asked: u64,
        /// The end of the round before.
        before: u64,
        /// The end of the round.
        after: u64,
    },
    /// What every worker keeps for itself was saved by another number of them.
    #[error(
        "the checkpoint has what {saved} workers kept for themselves, and run.workers = {asked}; \
         go on with run.workers = {saved}"
    )]
    OtherWorkers {
        /// How many there were.
        saved: usize,
        /// How many there are.
        asked: usize,
    },
    /// There is no folder.
    #[error("{dir} does not exist; `lockstep train` makes runs")]
    NoFolder {
        /// The folder that was asked for.
        dir: String,
    },
    /// There is nothing to resume or to generate from.
    #[error(
        "{dir} holds no finished run (no {missing}); run `lockstep train` first, with \
         checkpoint.every where it may not come to its end"
    )]
    NoRun {
        /// The folder that was looked into.
        dir: String,
        /// The file that a finished run would have.
        missing: String,
    },
    /// What was trained knows no text.
    #[error(
        "{dir} solved model.family = \"{family}\", which knows no text; name a run of gpt2 or llama"
    )]
    NoText {
        /// The run.
        dir: String,
        /// What it solved.
        family: &'static str,
    },
    /// Training left the finite numbers.
    #[error(
        "{what} became {value} at step {step}{source_of}; lower optim.lr or set optim.clip, then \
         restart"
    )]
    Diverged {
        /// The step, counted from zero.
        step: u64,
        /// The loss, or the norm of the gradient.
        what: String,
        /// Its value.
        value: f64,
        /// Which worker, block and tensor it came from first, in brackets, or nothing.
        source_of: String,
    },
    /// Somebody asked the process to end, and what was trained is saved.
    #[error("ended on request after step {step}; `--resume {folder}` goes on from there")]
    Interrupted {
        /// Steps that were done.
        step: u64,
        /// The checkpoint.
        folder: String,
    },
    /// Checkpoints of another run must not be mixed with those of this one.
    #[error(
        "checkpoint.dir = {dir} holds checkpoints already; go on from them with --resume {dir}, or \
         choose another folder"
    )]
    CheckpointsTaken {
        /// The folder that was asked for.
        dir: String,
    },
    /// Checkpoints cannot be where they are to be.
    #[error("checkpoint.dir = {dir} cannot be a folder: {file} is a file; choose another")]
    NoPlace {
        /// The folder that was asked for.
        dir: String,
        /// What is in its way.
        file: String,
    },
    /// The workers were not given one recipe.
    #[error(
        "worker {worker} has another recipe than worker 0; give all of them the same file and --set"
    )]
    WorkersDisagree {
        /// The first worker that differs.
        worker: usize,
    },
    /// The workers no longer hold the same weights.
    #[error(
        "after {step} steps {tensor} on worker {worker} is not that of worker 0; that machine's \
         memory or processor cannot be trusted"
    )]
    ReplicasDiffer {
        /// Steps that were done.
        step: u64,
        /// The first worker that differs.
        worker: usize,
        /// The first tensor that differs.
        tensor: String,
    },
}

impl TrainError {
    /// Who must act before the run can go on.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Data(error) => error.blame(),
            Self::Comm(error) => error.blame(),
            Self::Checkpoint(error) => error.blame(),
            // A path that cannot be a folder was named wrongly; a failing disk is another matter.
            Self::Folder(error) | Self::NoRoom { error, .. } => match error.kind() {
                ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::NotADirectory
                | ErrorKind::AlreadyExists
                | ErrorKind::InvalidInput => Blame::User,
                _ => Blame::Storage,
            },
            Self::Events(_) | Self::SavedEvents { .. } | Self::StateLost(_) => Blame::Storage,
            Self::Diverged { .. } => Blame::Diverged,
            Self::ReplicasDiffer { worker, .. } => Blame::Peer(*worker),
            Self::WorkersDisagree { .. }
            | Self::Threads(_)
            | Self::Interrupted { .. }
            | Self::CheckpointsTaken { .. }
            | Self::NoPlace { .. }
            | Self::NoFolder { .. }
            | Self::OtherRates { .. }
            | Self::OtherRounds { .. }
            | Self::FolderTaken { .. }
            | Self::NothingToDo { .. }
            | Self::Isa { .. }
            | Self::NoSuchParams { .. }
            | Self::AllFrozen { .. }
            | Self::NoModel { .. }
            | Self::Recipe(_)
            | Self::FoldersDiffer { .. }
            | Self::NothingInCommon { .. }
            | Self::OtherRecipe { .. }
            | Self::SavedRecipe { .. }
            | Self::NoText { .. }
            | Self::InsideRound { .. }
            | Self::OtherWorkers { .. }
            | Self::NoRun { .. } => Blame::User,
        }
    }
}
