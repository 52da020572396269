//! Tests of corpora from files and folders.

use lockstep_config::{Blame, Sources, resolve};
use lockstep_platform::ScratchDir;

use super::*;

fn bytes(span: &TokenSpan) -> Vec<u8> {
    span.to_vec().unwrap().into_iter().map(|token| token as u8).collect()
}

/// Both splits, concatenated.
fn all_bytes(corpus: &Corpus) -> Vec<u8> {
    [bytes(corpus.train()), bytes(corpus.validation())].concat()
}

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
        let source = path.display().to_string();
        let sets = vec!["model.context=2".to_owned(), "data.validation=0.25".to_owned()];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).unwrap();
        let held_out = &recipe.data.validation;
        Corpus::read(&recipe, &source, held_out, &Keep::Everything, &self.world)
    }

    /// User-visible error line, without the scratch folder's name.
    fn complaint(&self, name: &str) -> String {
        let error = self.load(name).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        let scratch = self.scratch.path().display().to_string();
        error.to_string().replace(&scratch, "DIR")
    }
}

#[test]
fn a_file_is_its_bytes_and_its_end_is_held_out() {
    let folder = Folder::with(&[("notes.txt", "abcdefghïjkl".as_bytes())]);
    let corpus = folder.load("notes.txt").unwrap();
    assert_eq!(all_bytes(&corpus), "abcdefghïjkl".as_bytes());
    assert_eq!((corpus.num_tokens(), bytes(corpus.validation())), (13, b"jkl".to_vec()));
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
    let corpus = folder.load("").unwrap();
    assert_eq!(all_bytes(&corpus), b"first\nsecond\nthird\n");
    assert_eq!(*corpus.train().ends, [6, 13, 19], "a file is a document");
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
         give a file, a folder, a glob such as \"texts/*.jsonl\" or \"bundled\""
    );
    assert_eq!(complaint("empty.txt"), "DIR/empty.txt is empty; give data.source a file with text");
    assert_eq!(complaint("latin.txt/inner"), "cannot read DIR/latin.txt/inner: not a directory");
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
    let path = format!("{}text.txt", "in/".repeat(32));
    let folder = Folder::with(&[(&path, b"a longer text than before")]);
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
    let of =
        |text: &str, validation| Corpus::from_text("test", text, validation).unwrap().fingerprint();
    let text = "In the beginning God created";
    assert_eq!(of(text, 0.25), of(text, 0.25));
    assert_ne!(of(text, 0.25), of(text, 0.5));
    assert_ne!(of(text, 0.25), of("In the beginning God creates", 0.25));
    assert_ne!(of(text, 0.25), of("in the beginning God created", 0.25));
    assert_eq!(of(text, 0.25).len(), 16);
}

#[test]
fn other_samples_have_another_fingerprint() {
    let of = |set: &str| {
        let sources = Sources {
            preset: Some("ridge".to_owned()),
            sets: vec![set.to_owned()],
            ..Sources::default()
        };
        let recipe = resolve(&sources).unwrap();
        Corpus::of_problem(&recipe).unwrap().fingerprint()
    };
    assert_eq!(of("problem.seed=1"), of("problem.seed=1"));
    assert_ne!(of("problem.seed=1"), of("problem.seed=2"));
    assert_eq!(of("train.seed=1"), of("train.seed=2"), "their order is another matter");
}
