//! Errors of training, each with the party that must act.

use lockstep_checkpoint::CheckpointError;
use lockstep_comm::CommError;
use lockstep_config::Blame;
use lockstep_config::units::Bytes;
use lockstep_data::DataError;
use lockstep_platform::{FileError, ThreadError};
use lockstep_telemetry::TelemetryError;
use lockstep_tensor::device::DeviceError;
use std::io::ErrorKind;

/// Reason why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The data could not be read or does not fit the recipe.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Weights or training state could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run folder could not be written.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// The file for offloaded optimizer state could not be created.
    #[error(
        "cannot allocate {bytes} for offloaded optimizer state: {error}; set offload.folder to \
         another disk"
    )]
    NoRoom {
        /// Size of the optimizer state.
        bytes: Bytes,
        /// Error of the disk.
        error: FileError,
    },
    /// The disk with the offloaded optimizer state failed.
    #[error("the optimizer state is lost: {0}; resume from the last checkpoint on another disk")]
    StateLost(FileError),
    /// The event file could not be opened.
    #[error(transparent)]
    Events(#[from] TelemetryError),
    /// Other workers could not be reached, or failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The compute device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A thread could not be started.
    #[error("{0}; lower sync.threads")]
    Threads(ThreadError),
    /// The run folder is not empty.
    #[error("run.dir = {dir} is not a new or empty folder; choose one that is")]
    FolderTaken {
        /// Path of the folder.
        dir: String,
    },
    /// All requested steps are done.
    #[error("nothing to train: {done} of {requested} steps are done already; raise train.steps")]
    NothingToDo {
        /// Number of finished steps.
        done: u64,
        /// Number of requested steps.
        requested: u64,
    },
    /// The recipe selects instructions that this CPU lacks.
    #[error("run.isa = {requested} needs instructions that this CPU lacks; try auto, {others}")]
    Isa {
        /// Requested instruction set.
        requested: String,
        /// Instruction sets of this CPU.
        others: String,
    },
    /// The recipe demands an accelerator for work of the host.
    #[error("run.device: {reason}; use run.device = cpu")]
    CpuOnly {
        /// Work that stays on the host.
        reason: &'static str,
    },
    /// A profile by operation without a device that records it.
    #[error(
        "times by operation need an accelerator, but this run computes on the CPU; try --set \
         run.device=cuda"
    )]
    NoAccelerator,
    /// A parameter pattern matches nothing.
    #[error(
        "{key}[{index}].match = \"{pattern}\" matches no parameter of this model; there are \
         {similar}"
    )]
    NoSuchParams {
        /// Key of the list of groups.
        key: &'static str,
        /// Index of the group, counted from zero.
        index: usize,
        /// Pattern of the group.
        pattern: String,
        /// Parameters with similar names.
        similar: String,
    },
    /// Every parameter is frozen.
    #[error(
        "optim.groups freezes every parameter at step {step}; leave one trained, or set \
         train.steps = {step}"
    )]
    AllFrozen {
        /// First step without a trained parameter.
        step: u64,
    },
    /// The custom model cannot be trained by this recipe.
    #[error("the custom model cannot be trained: {reason}")]
    CustomModel {
        /// Broken rule, with the block or the key.
        reason: String,
    },
    /// The folder holds no model.
    #[error(
        "{dir} holds no finished run (no recipe.toml), no Hugging Face model (no config.json) and \
         no adapters (no adapter_config.json)"
    )]
    NoModel {
        /// Path of the folder.
        dir: String,
    },
    /// A checkpoint of a PyTorch program without the configuration of its model.
    #[error(
        "{dir} is a checkpoint of a PyTorch program without the config.json of its model; write \
         one into it with model.config.save_pretrained"
    )]
    NoModelConfig {
        /// Path of the folder.
        dir: String,
    },
    /// Adapters have no place in a folder of another program's checkpoint.
    #[error(
        "{dir} trains adapters, which --to dcp cannot write; try --to peft, or --to huggingface \
         with merged adapters"
    )]
    AdaptersInDcp {
        /// Path of the folder.
        dir: String,
    },
    /// A folder of `torch.distributed.checkpoint` has no place for muP's multipliers.
    #[error(
        "{dir} was trained with model.mup_base_width, whose multipliers --to dcp cannot write \
         beside the optimizer state; try --to huggingface, which moves them into the weights"
    )]
    MupInDcp {
        /// Path of the folder.
        dir: String,
    },
    /// The model has no adapters to write.
    #[error(
        "{dir} has no adapters: it was trained with finetune.lora_rank = 0; try --to huggingface"
    )]
    NoAdapters {
        /// Path of the folder.
        dir: String,
    },
    /// The recipe is invalid; one line for each error.
    #[error("{0}")]
    Recipe(String),
    /// Workers read different weights from a folder of the recipe.
    #[error(
        "worker {worker} read another {tensor} from {dir} than worker 0; give all workers the \
         same files"
    )]
    FoldersDiffer {
        /// Path of the folder.
        dir: String,
        /// First worker that differs.
        worker: usize,
        /// First tensor that differs.
        tensor: String,
    },
    /// The `model.from` folder shares no tensor with the model.
    #[error(
        "model.from = {dir} has no tensor of this model, by name and shape; its first is {name}"
    )]
    NothingInCommon {
        /// Path of the folder.
        dir: String,
        /// First tensor of the folder.
        name: String,
    },
    /// The saved run has another recipe.
    #[error(
        "{dir} was trained with another recipe: {differences}; only run.*, parallel.*, offload.*, \
         checkpoint.* and emulate.* may change; without a recipe and --preset, --resume takes the \
         recipe of the run"
    )]
    OtherRecipe {
        /// Folder of the run to resume.
        dir: String,
        /// Differing settings, with both values.
        differences: String,
    },
    /// Another number of steps changes the learning rate of finished steps.
    #[error(
        "with train.steps = {steps} the learning rate of step {step} would not have been that of \
         {dir}, which has train.steps = {saved_steps}; without a recipe, --preset and --steps, \
         --resume takes the recipe of the run; a run with optim.schedule = constant and the same \
         optim.warmup_steps can be extended, and --from {dir} starts a new run with its weights"
    )]
    OtherRates {
        /// Folder of the run to resume.
        dir: String,
        /// Number of steps of its recipe.
        saved_steps: u64,
        /// Requested number of steps.
        steps: u64,
        /// First step that would differ, counted from zero.
        step: u64,
    },
    /// Another number of steps changes the rounds of finished steps.
    #[error(
        "train.steps = {steps} changes the round at step {step}, which {dir} has finished with \
         train.steps = {saved_steps}; a run whose rounds all have one length \
         (sync.synchronous_fraction = 0) and that ended with a whole round can be extended, and \
         --from {dir} starts a new run with its weights"
    )]
    OtherRounds {
        /// Folder of the run to resume.
        dir: String,
        /// Number of steps of its recipe.
        saved_steps: u64,
        /// Requested number of steps.
        steps: u64,
        /// First step that would differ, counted from zero.
        step: u64,
    },
    /// The recipe of a saved run is unusable.
    #[error("{path} cannot be used: {reason}")]
    SavedRecipe {
        /// Path of the recipe.
        path: String,
        /// All errors in it.
        reason: String,
    },
    /// The event file of a saved run is unreadable.
    #[error("{path} cannot be read: {reason}; restore the file or train the run again")]
    SavedEvents {
        /// Path of the event file.
        path: String,
        /// Error in it.
        reason: String,
    },
    /// The run would stop where workers hold different weights.
    #[error(
        "--stop-after {requested} ends inside a round of sync.mode = \"{mode}\"; try {before} or \
         {after}"
    )]
    InsideRound {
        /// Name of the strategy.
        mode: &'static str,
        /// Requested last step.
        requested: u64,
        /// End of the previous round.
        before: u64,
        /// End of the round.
        after: u64,
    },
    /// Per-worker state was saved by another number of workers.
    #[error(
        "the checkpoint holds per-worker state of {saved} workers, and run.workers = {requested}; \
         resume with run.workers = {saved}"
    )]
    OtherWorkers {
        /// Number of workers in the checkpoint.
        saved: usize,
        /// Number of workers of the recipe.
        requested: usize,
    },
    /// The folder does not exist.
    #[error("{dir} does not exist; `lockstep train` makes runs")]
    NoFolder {
        /// Path of the folder.
        dir: String,
    },
    /// The folder of a key does not exist.
    #[error(
        "{key} = {dir} does not exist; give the folder of a finished run, of a checkpoint or of a \
         Hugging Face model"
    )]
    NoFolderOfKey {
        /// Key of the recipe.
        key: &'static str,
        /// Path of the folder.
        dir: String,
    },
    /// The model of a folder of adapters is not known here.
    #[error(
        "{dir} has adapters without their model: {why}; give the folder of the model with --base \
         DIR (lockstep generate, chat and eval)"
    )]
    NoBase {
        /// Path of the folder.
        dir: String,
        /// Why it is not known.
        why: String,
    },
    /// As [`Self::NoBase`], for the folder of a key.
    #[error(
        "{key} = {dir} has adapters without their model: {why}; give the folder of a whole model \
         (model.from may be the base of finetune.adapter = {dir})"
    )]
    NoBaseOfKey {
        /// Key of the recipe.
        key: &'static str,
        /// Path of the folder.
        dir: String,
        /// Why it is not known.
        why: String,
    },
    /// Adapters do not fit a model.
    #[error("{base}, the base model of the adapters in {dir}, {why}")]
    UnfitBase {
        /// Path of the adapters.
        dir: String,
        /// Path of the model.
        base: String,
        /// Why they do not fit.
        why: String,
    },
    /// A base model for a folder that has one.
    #[error(
        "--base is for a folder of adapters (adapter_config.json), and {dir} is a model; drop it"
    )]
    BaseOfModel {
        /// Path of the folder.
        dir: String,
    },
    /// The folder holds no finished run.
    #[error(
        "{dir} holds no finished run (no {missing}); run `lockstep train` first, with \
         checkpoint.every where it may not come to its end"
    )]
    NoRun {
        /// Path of the folder.
        dir: String,
        /// Missing file.
        missing: String,
    },
    /// The run ended before its first checkpoint.
    #[error(
        "{dir} has no checkpoint to resume from: it trained {done} of {requested} steps and saved \
         none; start it again with its recipe.toml"
    )]
    NoCheckpoint {
        /// Folder of the run.
        dir: String,
        /// Number of trained steps.
        done: u64,
        /// Number of steps of its recipe.
        requested: u64,
    },
    /// The run trained a small problem, not a language model.
    #[error(
        "{dir} trained model.family = \"{family}\", which has no text; name a run of gpt2 or llama"
    )]
    NoText {
        /// Folder of the run.
        dir: String,
        /// Family of the problem.
        family: &'static str,
    },
    /// A model of other tokens than bytes has no tokenizer.
    #[error(
        "{dir} holds no tokenizer.json, and the {vocab} tokens of its model are not the 256 bytes; \
         copy the model's tokenizer.json into it, set data.tokenizer to the path of one, or train \
         on bytes with data.tokenizer = \"byte\""
    )]
    NoTokenizer {
        /// Path of the folder.
        dir: String,
        /// Vocabulary of the model.
        vocab: usize,
    },
    /// A model to chat with has no chat template.
    #[error(
        "{dir} has no chat template (chat_template.jinja, or chat_template in \
         tokenizer_config.json); choose one with --template chatml, or --template and the path of \
         a Jinja file"
    )]
    NoTemplate {
        /// Path of the folder.
        dir: String,
    },
    /// A conversation does not fit the context of the model, or has no token.
    #[error(
        "the conversation has {num_tokens} tokens, and the model's context is {context}; /reset \
         begins a new one"
    )]
    ConversationTooLong {
        /// Number of tokens of the conversation.
        num_tokens: usize,
        /// Context of the model.
        context: usize,
    },
    /// Training diverged.
    #[error(
        "{what} became {value} at step {step}{source_of}; lower optim.lr or set optim.clip, then \
         restart"
    )]
    Diverged {
        /// Step, counted from zero.
        step: u64,
        /// Loss or gradient norm.
        what: String,
        /// Non-finite value.
        value: f64,
        /// First worker, block and tensor at fault, in brackets, or empty.
        source_of: String,
    },
    /// A rank received a signal that ends the run, and the run was saved.
    #[error("ended on request after step {step}, saved in {folder}")]
    Interrupted {
        /// Number of finished steps.
        step: u64,
        /// Path of the checkpoint.
        folder: String,
        /// Whether the signal was SIGINT, not SIGTERM.
        is_interrupt: bool,
    },
    /// The checkpoint folder holds checkpoints of another run.
    #[error(
        "checkpoint.dir = {dir} holds checkpoints already; resume from them with --resume {dir}, \
         or choose another folder"
    )]
    CheckpointsTaken {
        /// Path of the folder.
        dir: String,
    },
    /// A file blocks the checkpoint folder.
    #[error("checkpoint.dir = {dir} cannot be a folder: {file} is a file; choose another")]
    NoPlace {
        /// Path of the folder.
        dir: String,
        /// Path of the file.
        file: String,
    },
    /// Workers have different recipes.
    #[error(
        "worker {worker} has another recipe than worker 0; give all workers the same file and --set"
    )]
    WorkersDisagree {
        /// First worker that differs.
        worker: usize,
    },
    /// Replicas differ.
    #[error(
        "after {step} steps {tensor} on worker {worker} differs from worker 0; suspect memory or \
         CPU faults on that machine"
    )]
    ReplicasDiffer {
        /// Number of finished steps.
        step: u64,
        /// First worker that differs.
        worker: usize,
        /// First tensor that differs.
        tensor: String,
    },
}

impl From<ThreadError> for TrainError {
    fn from(error: ThreadError) -> Self {
        Self::Threads(error)
    }
}

impl TrainError {
    /// Party that must act before the run can continue.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Data(error) => error.blame(),
            Self::Comm(error) => error.blame(),
            Self::Checkpoint(error) => error.blame(),
            // A path that cannot be a folder is a user error; a failing disk is a storage error.
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
            | Self::Device(_)
            | Self::Threads(_)
            | Self::Interrupted { .. }
            | Self::CheckpointsTaken { .. }
            | Self::NoPlace { .. }
            | Self::NoFolder { .. }
            | Self::NoFolderOfKey { .. }
            | Self::NoBase { .. }
            | Self::NoBaseOfKey { .. }
            | Self::UnfitBase { .. }
            | Self::BaseOfModel { .. }
            | Self::NoCheckpoint { .. }
            | Self::OtherRates { .. }
            | Self::OtherRounds { .. }
            | Self::FolderTaken { .. }
            | Self::NothingToDo { .. }
            | Self::Isa { .. }
            | Self::CpuOnly { .. }
            | Self::NoAccelerator
            | Self::NoSuchParams { .. }
            | Self::AllFrozen { .. }
            | Self::CustomModel { .. }
            | Self::NoModel { .. }
            | Self::NoModelConfig { .. }
            | Self::AdaptersInDcp { .. }
            | Self::MupInDcp { .. }
            | Self::NoAdapters { .. }
            | Self::Recipe(_)
            | Self::FoldersDiffer { .. }
            | Self::NothingInCommon { .. }
            | Self::OtherRecipe { .. }
            | Self::SavedRecipe { .. }
            | Self::NoText { .. }
            | Self::NoTemplate { .. }
            | Self::NoTokenizer { .. }
            | Self::ConversationTooLong { .. }
            | Self::InsideRound { .. }
            | Self::OtherWorkers { .. }
            | Self::NoRun { .. } => Blame::User,
        }
    }
}
