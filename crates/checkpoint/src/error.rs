//! Errors of checkpoints, and the party to blame.

use std::io;
use std::path::PathBuf;

use lockstep_config::Blame;
use lockstep_platform::FileError;

/// Longest excerpt of a file in a message.
const QUOTED_CHARS: usize = 120;

/// A checkpoint that could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The file itself cannot be used.
    #[error(transparent)]
    File(#[from] FileError),

    /// The bytes are not a complete file of weights.
    #[error("{} is not a whole safetensors file: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The inconsistency.
        reason: String,
    },

    /// A tensor has an element type that is not supported.
    #[error("{}: tensor {tensor} has type {dtype}; only F32 can be loaded", path.display())]
    NotF32 {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its type, as named by the format.
        dtype: String,
    },

    /// A tensor has an element type that cannot be widened to `f32`.
    #[error(
        "{}: tensor {tensor} has type {dtype}; F32, BF16 and F16 can be read", path.display()
    )]
    NotFloat {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its type, as named by the format.
        dtype: String,
    },

    /// A stored weight is not finite.
    #[error("{}: tensor {tensor} holds {value} at element {element}", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The first such element.
        element: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },

    /// Training diverged, so the weights are not saved.
    #[error("weights not saved: tensor {tensor} holds {value} at element {element}")]
    Diverged {
        /// The tensor's name.
        tensor: String,
        /// The first such element.
        element: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },

    /// A weight has no finite value in the requested number format.
    #[error(
        "tensor {tensor} holds {value} at element {element}, too large for {format}; \
         try --dtype f32"
    )]
    TooLarge {
        /// The tensor's name.
        tensor: String,
        /// The first such element.
        element: usize,
        /// Its value.
        value: String,
        /// The number format.
        format: &'static str,
    },

    /// The model needs a tensor that the file lacks.
    #[error("{} has no tensor {tensor}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },

    /// The file has a tensor that the model lacks.
    #[error("{} has a tensor {tensor} that the model lacks", path.display())]
    ExtraTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },

    /// Two tensors map to one parameter.
    #[error("{}: tensors {tensor} and {other} are one and the same parameter", path.display())]
    DuplicateTensor {
        /// The file of the second.
        path: PathBuf,
        /// The name of the second.
        tensor: String,
        /// The name of the first.
        other: String,
    },

    /// The output projection is declared tied to the embedding and differs.
    #[error(
        "{}: tie_word_embeddings = true, but {tensor} is not {owner} from element {element} on; \
         set it to false", path.display()
    )]
    NotTied {
        /// The folder.
        path: PathBuf,
        /// The copy.
        tensor: String,
        /// The tensor it is tied to.
        owner: String,
        /// The first element that differs.
        element: usize,
    },

    /// A folder in another program's format is not supported.
    #[error("{}: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The unsupported content, and the alternative.
        reason: String,
    },

    /// A model that the other format cannot express.
    #[error("model.family = {family} cannot be a Hugging Face folder; gpt2 and llama can")]
    NoCounterpart {
        /// Its family.
        family: &'static str,
    },

    /// A foreign model has options that the engine lacks, one line each.
    #[error("{}", lines.join("\n"))]
    Options {
        /// File, option, value and supported values.
        lines: Vec<String>,
    },

    /// An input file of another program is invalid, which is the user's to fix.
    #[error(transparent)]
    Input(Box<Self>),

    /// The target folder exists.
    #[error("{} exists already; choose another name", path.display())]
    FolderExists {
        /// The folder.
        path: PathBuf,
    },

    /// A tensor does not have the shape the model needs.
    #[error(
        "{}: tensor {tensor} has shape {found:?}, the model needs {expected:?}",
        path.display()
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape in the model.
        expected: Vec<usize>,
    },

    /// The bytes are not a training state.
    #[error("{} is not a training state: {reason}", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// The inconsistency.
        reason: String,
    },

    /// A checkpoint is truncated or corrupt.
    #[error("{} is not a whole checkpoint: {reason}", path.display())]
    BadCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// The inconsistency.
        reason: String,
    },

    /// A checkpoint could not be written; older ones are intact.
    #[error("the checkpoint of step {step} was not written: {reason}; {newest}")]
    NotSaved {
        /// Number of completed steps.
        step: u64,
        /// The failure.
        reason: String,
        /// The newest checkpoint to resume from.
        newest: String,
    },

    /// Another rank could not write its shard.
    #[error("rank {rank} could not write its shard: {reason}")]
    ShardFailed {
        /// The rank.
        rank: usize,
        /// Its error.
        reason: String,
    },

    /// A rank did not write its shard in time.
    #[error(
        "rank {rank} did not write its shard within {seconds} s; checkpoint.dir must be one folder \
         that all workers share"
    )]
    ShardTimeout {
        /// First missing rank.
        rank: usize,
        /// Time limit.
        seconds: u64,
    },

    /// A newer attempt of the run has taken over.
    #[error(
        "generation {generation} of this run may write no checkpoint: generation {newer} has taken \
         over"
    )]
    Superseded {
        /// Attempt of this rank.
        generation: u64,
        /// The newer attempt.
        newer: u64,
    },

    /// The training state has a newer format.
    #[error(
        "{} has state format {found}, this program reads up to {known}",
        path.display()
    )]
    NewerState {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format read here.
        known: u32,
    },
}

impl CheckpointError {
    /// The responsible party. A missing or unreadable file is a wrong path; a damaged file or a
    /// failing disk needs an older checkpoint.
    pub fn blame(&self) -> Blame {
        match self {
            Self::File(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidInput => Blame::User,
                _ => Blame::Storage,
            },
            Self::Damaged { .. }
            | Self::BadState { .. }
            | Self::BadCheckpoint { .. }
            | Self::NotSaved { .. }
            | Self::ShardFailed { .. }
            | Self::ShardTimeout { .. } => Blame::Storage,
            // The newer attempt reports for the run.
            Self::Superseded { .. } => Blame::Peer(0),
            Self::Input(error) => match error.as_ref() {
                Self::File(_) => error.blame(),
                _ => Blame::User,
            },
            Self::NotF32 { .. }
            | Self::NotFloat { .. }
            | Self::TooLarge { .. }
            | Self::ExtraTensor { .. }
            | Self::DuplicateTensor { .. }
            | Self::NotTied { .. }
            | Self::Foreign { .. }
            | Self::NoCounterpart { .. }
            | Self::Options { .. }
            | Self::FolderExists { .. }
            | Self::NotFinite { .. }
            | Self::MissingTensor { .. }
            | Self::WrongShape { .. }
            | Self::NewerState { .. } => Blame::User,
            Self::Diverged { .. } => Blame::Diverged,
        }
    }
}

impl CheckpointError {
    /// Marks the error as one of an input file.
    pub(crate) fn of_input(self) -> Self {
        match self {
            Self::Input(_) => self,
            other => Self::Input(Box::new(other)),
        }
    }
}

/// An excerpt of a file for a one-line message, without control characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut characters = text.chars();
    let kept = characters.by_ref().take(QUOTED_CHARS);
    let mut line: String = kept.map(|c| if c.is_control() { ' ' } else { c }).collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lockstep_platform::FileAction;

    use super::*;

    fn file_error(kind: io::ErrorKind) -> CheckpointError {
        FileError::new(FileAction::Read, Path::new("w"), &kind.into()).into()
    }

    #[test]
    fn a_wrong_path_is_the_users_and_a_failing_disk_is_not() {
        assert_eq!(file_error(io::ErrorKind::NotFound).blame(), Blame::User);
        assert_eq!(file_error(io::ErrorKind::StorageFull).blame(), Blame::Storage);
        assert_eq!(file_error(io::ErrorKind::UnexpectedEof).blame(), Blame::Storage);
    }

    #[test]
    fn quotes_are_one_short_line() {
        assert_eq!(quoted("a\nb\x1b[2J"), "a b [2J");
        assert_eq!(quoted(&"x".repeat(500)), "x".repeat(QUOTED_CHARS) + "…");
        assert_eq!(quoted(&"y".repeat(QUOTED_CHARS)), "y".repeat(QUOTED_CHARS));
    }
}
