//! What can go wrong with a checkpoint, and who has to act.

use std::io;
use std::path::PathBuf;

use lockstep_config::Blame;
use lockstep_platform::FileError;

/// The longest piece of a file's own text that is repeated in a message.
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
        /// What does not fit.
        reason: String,
    },

    /// A tensor has an element type that is not supported.
    #[error("{}: tensor {tensor} has type {dtype}; only F32 can be loaded", path.display())]
    NotF32 {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its type, in the words of the format.
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
        /// Its type, in the words of the format.
        dtype: String,
    },

    /// A stored weight is not a number that can be computed with.
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

    /// The training left the finite numbers, so its weights are not worth a file.
    #[error("weights not saved: tensor {tensor} holds {value} at element {element}")]
    Diverged {
        /// The tensor's name.
        tensor: String,
        /// The first such element.
        element: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },

    /// A weight has no finite value in the number format that was asked for.
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

    /// Two tensors stand for one parameter.
    #[error("{}: tensors {tensor} and {other} are one and the same parameter", path.display())]
    Twice {
        /// The file of the second.
        path: PathBuf,
        /// The name of the second.
        tensor: String,
        /// The name of the first.
        other: String,
    },

    /// The output projection is said to be the embedding table and is not.
    #[error(
        "{}: tie_word_embeddings = true, but {tensor} is not {owner} from element {element} on; \
         set it to false", path.display()
    )]
    NotTied {
        /// The folder.
        path: PathBuf,
        /// The copy.
        tensor: String,
        /// What it should be a copy of.
        owner: String,
        /// The first element that differs.
        element: usize,
    },

    /// A folder in another program's format holds what we cannot use.
    #[error("{}: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What does not fit, and what would.
        reason: String,
    },

    /// A model of ours that another program has no words for.
    #[error("model.family = {family} cannot be a Hugging Face folder; gpt2 and llama can")]
    NoCounterpart {
        /// Its family.
        family: &'static str,
    },

    /// A foreign model has options that the engine lacks: one line for each.
    #[error("{}", lines.join("\n"))]
    Options {
        /// File, option, value and what would work.
        lines: Vec<String>,
    },

    /// A file that somebody else wrote is wrong, which is for its giver to mend.
    #[error(transparent)]
    Input(Box<Self>),

    /// A folder would be written over.
    #[error("{} exists already; choose a folder that does not", path.display())]
    Taken {
        /// The folder that was asked for.
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
        /// What does not fit.
        reason: String,
    },

    /// A checkpoint that is torn, cut short or changed.
    #[error("{} is not a whole checkpoint: {reason}", path.display())]
    BadCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },

    /// A checkpoint could not be written; older ones are as they were.
    #[error("the checkpoint of step {step} was not written: {reason}; {newest}")]
    Unsaved {
        /// Steps that were done.
        step: u64,
        /// What went wrong.
        reason: String,
        /// What is left to go on from.
        newest: String,
    },

    /// Another worker could not write its part of a checkpoint.
    #[error("rank {rank} could not write its part: {reason}")]
    PartFailed {
        /// Which.
        rank: usize,
        /// What it said.
        reason: String,
    },

    /// A worker did not write its part of a checkpoint.
    #[error(
        "rank {rank} did not write its part within {seconds} s; checkpoint.dir must be one folder \
         that all workers share"
    )]
    Late {
        /// The first that is missing.
        rank: usize,
        /// How long it was waited for.
        seconds: u64,
    },

    /// Another life of the run has begun in the meantime.
    #[error(
        "generation {generation} of this run may write no checkpoint: generation {newer} has taken \
         over"
    )]
    Superseded {
        /// The life that this worker belongs to.
        generation: u64,
        /// The one that took over.
        newer: u64,
    },

    /// The training state comes from a program newer than this one.
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
    /// Who has to act. A file that is not there or not readable was named wrongly; a file that is
    /// damaged or a disk that fails calls for an older checkpoint.
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
            | Self::Unsaved { .. }
            | Self::PartFailed { .. }
            | Self::Late { .. } => Blame::Storage,
            // Whoever took over speaks for the run.
            Self::Superseded { .. } => Blame::Peer(0),
            Self::Input(error) => match error.as_ref() {
                Self::File(_) => error.blame(),
                _ => Blame::User,
            },
            Self::NotF32 { .. }
            | Self::NotFloat { .. }
            | Self::TooLarge { .. }
            | Self::ExtraTensor { .. }
            | Self::Twice { .. }
            | Self::NotTied { .. }
            | Self::Foreign { .. }
            | Self::NoCounterpart { .. }
            | Self::Options { .. }
            | Self::Taken { .. }
            | Self::NotFinite { .. }
            | Self::MissingTensor { .. }
            | Self::WrongShape { .. }
            | Self::NewerState { .. } => Blame::User,
            Self::Diverged { .. } => Blame::Diverged,
        }
    }
}

impl CheckpointError {
    /// The same, about a file that somebody else wrote.
    pub(crate) fn of_input(self) -> Self {
        match self {
            Self::Input(_) => self,
            other => Self::Input(Box::new(other)),
        }
    }
}

/// Text out of a file as part of a one-line message: no line breaks or other control characters,
/// and no more than a reader can use.
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
