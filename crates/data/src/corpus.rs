//! Text becomes one stream of tokens, the front of it for training and the end for validation.
//!
//! The stream is kept as bytes, because a token is a byte: a corpus takes the memory of its text,
//! and batches are widened to `u32` as they are cut. The validation split is the *last* part of the
//! stream and not a random choice of windows, so no validation token is ever inside a training
//! window.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lockstep_config::{Recipe, Source};
use lockstep_platform::{FileKind, Files, World};

use crate::bundled;
use crate::error::{DataError, Split};
use crate::permutation::mix;
use crate::problem;

/// How many folders deep a corpus folder is read: a link to a parent folder must come to an end.
const MAX_DEPTH: usize = 32;

/// A token stream and where it is split.
pub struct Corpus {
    name: String,
    tokens: Vec<u8>,
    num_train: usize,
    fingerprint: OnceLock<u64>,
}

impl Corpus {
    /// Reads the text that a recipe names and proves that its context fits into both splits.
    pub fn load(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        if recipe.model.family.is_problem() {
            return problem::corpus(recipe);
        }
        let validation = recipe.data.validation;
        let corpus = match &recipe.data.source {
            Source::Bundled => Self::bundled(validation),
            Source::Path(path) => Self::from_path(Path::new(path), world.files(), validation)?,
        };
        corpus.require(recipe.model.context)?;
        Ok(corpus)
    }

    /// The text inside the binary, with its last `validation` fraction held out.
    pub fn bundled(validation: f64) -> Self {
        Self::new(bundled::NAME.to_owned(), bundled::text(), validation)
    }

    /// A text that is already in memory; `name` stands for it in messages.
    pub fn from_text(name: &str, text: &str, validation: f64) -> Result<Self, DataError> {
        if text.is_empty() {
            return Err(DataError::EmptyFile { path: name.into() });
        }
        Ok(Self::new(name.to_owned(), text.as_bytes().to_vec(), validation))
    }

    fn from_path(path: &Path, files: &dyn Files, validation: f64) -> Result<Self, DataError> {
        let tokens = match files.metadata(path) {
            Some(FileKind::Directory) => read_folder(path, files)?,
            Some(FileKind::File { bytes: 0 }) => {
                return Err(DataError::EmptyFile { path: path.to_owned() });
            }
            Some(FileKind::File { .. }) => read_text(path, files)?,
            // Nothing there, or not ours to see: the attempt to read it tells which.
            None => read_text(path, files).map_err(|error| error.or_missing(path))?,
        };
        Ok(Self::new(path.display().to_string(), tokens, validation))
    }

    fn new(name: String, tokens: Vec<u8>, validation: f64) -> Self {
        assert!((0.0..1.0).contains(&validation), "resolve proved the validation fraction");
        let num_validation = (tokens.len() as f64 * validation) as usize;
        let num_train = tokens.len() - num_validation;
        Self { name, tokens, num_train, fingerprint: OnceLock::new() }
    }

    /// Checks that each split holds at least one window of `context + 1` tokens.
    pub fn require(&self, context: usize) -> Result<(), DataError> {
        let shorter = self.train().len().min(self.validation().len());
        let splits = [(Split::Train, self.train()), (Split::Validation, self.validation())];
        for (split, tokens) in splits {
            if tokens.len() <= context {
                return Err(DataError::TooShort {
                    name: self.name.clone(),
                    split,
                    num_tokens: tokens.len(),
                    context,
                    longest_context: shorter.saturating_sub(1),
                });
            }
        }
        Ok(())
    }

    /// The path, or a few words for a text that has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many tokens there are, over both splits.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The whole stream, a byte a token.
    pub fn bytes(&self) -> &[u8] {
        &self.tokens
    }

    /// The front of the stream, which the model learns from.
    pub fn train(&self) -> &[u8] {
        &self.tokens[..self.num_train]
    }

    /// The end of the stream, which the model is judged by.
    pub fn validation(&self) -> &[u8] {
        &self.tokens[self.num_train..]
    }

    /// A short name of the content and the split: equal for equal corpora, almost surely different
    /// for others. Sixteen hexadecimal digits. It guards against mistakes, not against forgery.
    pub fn fingerprint(&self) -> String {
        let fingerprint = self.fingerprint.get_or_init(|| {
            let lengths = mix(self.tokens.len() as u64, self.num_train as u64);
            let (words, rest) = self.tokens.as_chunks::<8>();
            let state =
                words.iter().fold(lengths, |state, &word| mix(state, u64::from_le_bytes(word)));
            rest.iter().fold(state, |state, &byte| mix(state, u64::from(byte)))
        });
        format!("{fingerprint:016x}")
    }
}

/// The content stays out of debug output: it is megabytes long.
impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Corpus({}, {} tokens)", self.name, self.tokens.len())
    }
}

/// The bytes of one file, proven to be UTF-8.
fn read_text(path: &Path, files: &dyn Files) -> Result<Vec<u8>, DataError> {
    let bytes = files.read(path)?;
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => {
            Err(DataError::NotUtf8 { path: path.to_owned(), offset_bytes: error.valid_up_to() })
        }
    }
}

/// All files of a folder, at any depth, in the order of their paths, with a newline between two.
/// Empty files add nothing.
fn read_folder(folder: &Path, files: &dyn Files) -> Result<Vec<u8>, DataError> {
    let mut paths = Vec::new();
    collect_files(folder, files, MAX_DEPTH, &mut paths)?;
    paths.sort_unstable();
    let mut tokens = Vec::new();
    for path in paths {
        let text = read_text(&path, files)?;
        if !tokens.is_empty() {
            tokens.push(b'\n');
        }
        tokens.extend(text);
    }
    if tokens.is_empty() {
        return Err(DataError::EmptyFolder { path: folder.to_owned() });
    }
    Ok(tokens)
}

/// Hidden files and folders are left out: they hold tools' data (`.git`, `.DS_Store`), not text.
fn collect_files(
    folder: &Path,
    files: &dyn Files,
    depth: usize,
    paths: &mut Vec<PathBuf>,
) -> Result<(), DataError> {
    if depth == 0 {
        return Err(DataError::TooDeep { path: folder.to_owned(), limit: MAX_DEPTH });
    }
    for path in files.list(folder)? {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        match files.metadata(&path) {
            Some(FileKind::Directory) => collect_files(&path, files, depth - 1, paths)?,
            Some(FileKind::File { bytes: 0 }) => {}
            // A link to nothing is among these; reading it says so by name.
            Some(FileKind::File { .. }) | None => paths.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockstep_config::Blame;
    use lockstep_platform::ScratchDir;

    use super::*;

    /// A scratch folder with the given files in it.
    struct Folder {
        world: World,
        scratch: ScratchDir,
    }

    impl Folder {
        fn with(entries: &[(&str, &[u8])]) -> Self {
            let world = lockstep_platform::real();
            let scratch = ScratchDir::new(&world, "corpus").unwrap();
            for (name, bytes) in entries {
                let path = scratch.path().join(name);
                world.files().create_dir_all(path.parent().unwrap()).unwrap();
                world.files().write_atomic(&path, bytes).unwrap();
            }
            Self { world, scratch }
        }

        fn load(&self, name: &str) -> Result<Corpus, DataError> {
            let path = if name.is_empty() {
                self.scratch.path().to_owned()
            } else {
                self.scratch.path().join(name)
            };
            Corpus::from_path(&path, self.world.files(), 0.25)
        }

        /// The one line a user sees, with the scratch folder's own name cut out.
        fn complaint(&self, name: &str) -> String {
            let error = self.load(name).unwrap_err();
            assert_eq!(error.blame(), Blame::User);
            let scratch = self.scratch.path().display().to_string();
            error.to_string().replace(&scratch, "DIR")
        }
    }

    #[test]
    fn a_file_is_its_bytes_and_its_end_is_held_out() {
        let folder = Folder::with(&[("notes.txt", "abcdefghïj".as_bytes())]);
        let corpus = folder.load("notes.txt").unwrap();
        assert_eq!(corpus.bytes(), "abcdefghïj".as_bytes());
        assert_eq!((corpus.num_tokens(), corpus.validation()), (11, &b"\xafj"[..]));
        assert_eq!([corpus.train(), corpus.validation()].concat(), corpus.bytes());
        assert!(corpus.name().ends_with("notes.txt"));
    }

    #[test]
    fn a_folder_is_its_files_by_path_at_any_depth_without_hidden_and_empty_ones() {
        let folder = Folder::with(&[
            ("b.md", b"second"),
            ("a/deep/er.rst", b"first"),
            ("c.txt", b""),
            ("d", b"third\n"),
            (".hidden", b"\xff"),
            (".git/object", b"\xff"),
        ]);
        assert_eq!(folder.load("").unwrap().bytes(), b"first\nsecond\nthird\n");
    }

    #[test]
    fn bad_files_are_named_in_one_line() {
        let folder = Folder::with(&[
            ("empty.txt", b""),
            ("image.png", b"\x89PNG"),
            ("latin.txt", b"caf\xe9"),
            ("nothing/.keep", b""),
            ("mixed/good.txt", b"good"),
            ("mixed/bad.txt", b"ab\xc3"),
        ]);
        let complaint = |name| folder.complaint(name);
        assert_eq!(
            complaint("missing.txt"),
            "data.source = DIR/missing.txt does not exist; \
             give a text file, a folder of them or \"bundled\""
        );
        assert_eq!(
            complaint("empty.txt"),
            "DIR/empty.txt is empty; give data.source a file with text"
        );
        assert_eq!(
            complaint("latin.txt/inner"),
            "cannot read DIR/latin.txt/inner: not a directory"
        );
        let at = |name, byte| format!("DIR/{name} is not UTF-8 text: byte {byte} cannot be read");
        assert_eq!(complaint("image.png"), at("image.png", 0));
        assert_eq!(complaint("latin.txt"), at("latin.txt", 3));
        assert_eq!(complaint("mixed"), at("mixed/bad.txt", 2));
        assert_eq!(
            complaint("nothing"),
            "DIR/nothing holds no file with text (hidden files are not read)"
        );
    }

    #[test]
    fn folders_without_end_are_given_up() {
        let path = format!("{}text.txt", "in/".repeat(MAX_DEPTH));
        let folder = Folder::with(&[(&path, b"text")]);
        assert!(folder.load("in").is_ok());
        let complaint = folder.complaint("");
        assert!(complaint.contains("lies more than 32 folders deep"), "{complaint}");
    }

    #[test]
    fn a_link_to_nothing_inside_a_folder_is_named() {
        let folder = Folder::with(&[("good.txt", b"good")]);
        std::os::unix::fs::symlink("gone", folder.scratch.path().join("link.txt")).unwrap();
        assert_eq!(folder.complaint(""), "cannot read DIR/link.txt: no such file");
    }

    #[test]
    fn a_split_without_room_for_a_window_is_refused_with_a_context_that_works() {
        let corpus = Corpus::from_text("notes.txt", &"x".repeat(100), 0.1).unwrap();
        assert!(corpus.require(9).is_ok());
        let error = corpus.require(10).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        assert_eq!(
            error.to_string(),
            "notes.txt is too short: its validation split has 10 tokens and model.context = 10 \
             needs 11; try model.context = 9 or a longer text"
        );
        let error = corpus.require(90).unwrap_err().to_string();
        assert!(error.contains("train split has 90 tokens"), "{error}");

        let tiny = Corpus::from_text("tiny.txt", "abc", 0.5).unwrap();
        let error = tiny.require(256).unwrap_err().to_string();
        assert!(error.ends_with("needs 257; give a longer text"), "{error}");
    }

    #[test]
    fn fingerprints_tell_texts_and_splits_apart() {
        let of = |text: &str, validation| {
            Corpus::from_text("test", text, validation).unwrap().fingerprint()
        };
        let text = "In the beginning God created";
        assert_eq!(of(text, 0.25), of(text, 0.25));
        assert_ne!(of(text, 0.25), of(text, 0.5));
        assert_ne!(of(text, 0.25), of("In the beginning God creates", 0.25));
        assert_ne!(of(text, 0.25), of("in the beginning God created", 0.25));
        assert_eq!(of(text, 0.25).len(), 16);
    }
}
