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

    /// The model needs a tensor that the file lacks.
    #[error("{} has no tensor {tensor}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
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
            Self::Damaged { .. } | Self::BadState { .. } => Blame::Storage,
            Self::NotF32 { .. }
            | Self::NotFinite { .. }
            | Self::MissingTensor { .. }
            | Self::WrongShape { .. }
            | Self::NewerState { .. } => Blame::User,
            Self::Diverged { .. } => Blame::Diverged,
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
