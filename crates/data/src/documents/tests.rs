//! Tests of all document formats, intact and damaged.

use lockstep_config::Blame;
use lockstep_platform::ScratchDir;
use proptest::prelude::*;

use super::pieces::{PIECE_BYTES, cut};
use super::*;

/// A scratch folder with the given files in it.
pub(super) struct Folder {
    pub(super) world: World,
    pub(super) scratch: ScratchDir,
}

impl Folder {
    pub(super) fn with(entries: &[(&str, &[u8])]) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "documents").unwrap();
        for (name, bytes) in entries {
            let path = scratch.path().join(name);
            world.files().create_dir_all(path.parent().unwrap()).unwrap();
            world.files().write_atomic(&path, bytes).unwrap();
        }
        Self { world, scratch }
    }

    fn open(&self, name: &str, options: &ReadOptions) -> Result<Documents, DataError> {
        Documents::open(&self.scratch.path().join(name), options, &self.world)
    }

    pub(super) fn read_with(
        &self,
        name: &str,
        options: &ReadOptions,
    ) -> Result<Vec<String>, DataError> {
        let mut documents = self.open(name, options)?;
        let (mut all, mut text) = (Vec::new(), String::new());
        while documents.next_document(&mut text)? {
            all.push(text.clone());
        }
        assert!(documents.position_bytes() <= documents.total_bytes());
        Ok(all)
    }

    pub(super) fn read(&self, name: &str) -> Vec<String> {
        self.read_with(name, &ReadOptions::default()).unwrap()
    }

    /// User-visible error line, without the scratch folder's name.
    pub(super) fn complaint(&self, name: &str) -> String {
        let error = self.read_with(name, &ReadOptions::default()).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        let line = error.to_string().replace(&self.scratch.path().display().to_string(), "DIR");
        assert!(!line.contains('\n'), "{line}");
        line
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_folder_is_its_files_by_path_whatever_their_formats() {
    let folder = Folder::with(&[
        ("b.txt", b"second"),
        ("a/deep/lines.jsonl", b"{\"text\": \"one\"}\n\n{\"id\": 7, \"text\": \"tw\\u00f6\"}"),
        ("c.txt.gz", &gzip(b"third")),
        ("d.jsonl.zst", &zstd::encode_all(&b"{\"text\":\"fourth\"}\n"[..], 1).unwrap()),
        ("e.txt", b""),
        (".hidden", b"\xff"),
    ]);
    assert_eq!(folder.read(""), ["one", "twö", "second", "third", "fourth"]);
    // Concatenated gzip members are read as one file.
    let two = Folder::with(&[("two.txt.gz", &[gzip(b"one "), gzip(b"two")].concat())]);
    assert_eq!(two.read("two.txt.gz"), ["one two"]);
}

#[test]
fn globs_find_files_in_the_order_of_their_paths() {
    let folder = Folder::with(&[
        ("x/part-2.txt", b"2"),
        ("x/part-10.txt", b"10"),
        ("x/other.md", b"other"),
        ("y/z/part-1.txt", b"1"),
        ("y/.part-0.txt", b"0"),
        ("[odd].txt", b"odd"),
    ]);
    assert_eq!(folder.read("x/part-*.txt"), ["10", "2"]);
    assert_eq!(folder.read("**/part-?.txt"), ["2", "1"]);
    assert_eq!(folder.read("{y/**,x}/part-[0-2].txt"), ["2", "1"]);
    assert_eq!(folder.read("x/*.{md,txt}"), ["other", "10", "2"]);
    assert_eq!(folder.read("y/**"), ["1"]);
    // An existing path is taken literally.
    assert_eq!(folder.read("[odd].txt"), ["odd"]);
    assert_eq!(
        folder.complaint("x/*.csv"),
        "no file matches DIR/x/*.csv; * and ? stay within a folder, ** goes through folders"
    );
    assert_eq!(folder.complaint("x/[a.txt"), "DIR/x/[a.txt is no glob: a [ without its ]");
}

#[test]
fn a_separator_cuts_a_text_into_documents() {
    let chapters = Folder::with(&[("t.txt", b"\n\none\ntwo\n\nthree\n\n\n\nfour")]);
    let options = ReadOptions { separator: Some("\n\n".to_owned()), ..ReadOptions::default() };
    assert_eq!(chapters.read_with("t.txt", &options).unwrap(), ["one\ntwo", "three", "four"]);
    assert_eq!(chapters.read("t.txt").len(), 1);

    let mut documents = Documents::bundled(&lockstep_platform::real());
    let (mut text, mut num_chapters) = (String::new(), 0);
    while documents.next_document(&mut text).unwrap() {
        num_chapters += 1;
    }
    assert_eq!(num_chapters, 1_189);
}

#[test]
fn a_long_text_comes_in_pieces_that_are_the_text() {
    // Multi-byte characters at every distance from the end of a portion.
    let long: String = (0..200_000).map(|i| ["word ", "é", "日本", "🙂 a", "\n"][i % 5]).collect();
    let plain = "in the beginning ".repeat(40_000);
    let solid = "x".repeat(3 * PIECE_BYTES + 1);
    for text in [long, plain, solid] {
        let folder = Folder::with(&[
            ("t.txt", text.as_bytes()),
            ("t.jsonl", serde_json::json!({ "text": text }).to_string().as_bytes()),
        ]);
        for name in ["t.txt", "t.jsonl"] {
            let mut documents = folder.open(name, &ReadOptions::default()).unwrap();
            let (mut all, mut piece, mut positions) = (String::new(), String::new(), Vec::new());
            while let Some(kind) = documents.next_into(&mut piece).unwrap() {
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES);
                all.push_str(&piece);
                positions.push(kind);
            }
            assert!(all == text, "{name}");
            assert!(positions.len() > 2 && positions.ends_with(&[Piece::Part, Piece::Last]));
        }
    }
}

#[test]
fn wrong_encodings_are_named_with_their_place() {
    let long = [&b"a ".repeat(PIECE_BYTES)[..], b"caf\xe9"].concat();
    let folder = Folder::with(&[
        ("latin.txt", b"caf\xe9"),
        ("long.txt", &long),
        ("half.txt", b"ab\xc3"),
        ("wide.txt", b"\xff\xfea\0b\0"),
        ("wide.jsonl", b"\xfe\xff\0a"),
        ("mark.txt", b"\xef\xbb\xbftext"),
        ("mark-then-latin.txt", b"\xef\xbb\xbfa\xe9"),
        ("mixed.jsonl", b"{\"text\":\"good\"}\n{\"text\":\"caf\xe9\"}\n"),
        ("mixed.txt.gz", &gzip(b"abc\xff")),
    ]);
    let at = |name, byte| format!("DIR/{name} is not UTF-8 text: byte {byte} cannot be read");
    assert_eq!(folder.complaint("latin.txt"), at("latin.txt", 3));
    assert_eq!(folder.complaint("long.txt"), at("long.txt", 2 * PIECE_BYTES + 3));
    assert_eq!(folder.complaint("half.txt"), at("half.txt", 2));
    assert_eq!(folder.complaint("mark-then-latin.txt"), at("mark-then-latin.txt", 4));
    assert_eq!(folder.complaint("mixed.jsonl"), at("mixed.jsonl", 28));
    assert_eq!(folder.complaint("mixed.txt.gz"), at("mixed.txt.gz", 3));
    for name in ["wide.txt", "wide.jsonl"] {
        assert!(folder.complaint(name).contains("is UTF-16 text"));
    }
    assert_eq!(folder.read("mark.txt"), ["text"]);
}

#[test]
fn json_lines_that_are_wrong_are_named_by_file_and_line() {
    let folder = Folder::with(&[
        ("field.jsonl", b"{\"text\": \"a\"}\n{\"content\": \"b\", \"id\": 1}\n"),
        ("broken.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"b\"\n"),
        ("array.json", b"[{\"text\": \"a\"}]"),
        ("number.jsonl", b"{\"text\": 3}"),
        ("two.jsonl", b"{\"text\": \"a\"} {\"text\": \"b\"}"),
        ("nulls.jsonl", b"{\"text\": null}\n{\"text\": \"\"}\n{\"text\": \"a\"}"),
    ]);
    assert_eq!(
        folder.complaint("field.jsonl"),
        "DIR/field.jsonl line 2 has no field \"text\"; it has content, id"
    );
    assert_eq!(
        folder.complaint("broken.jsonl"),
        "DIR/broken.jsonl line 2 is no JSON object: EOF while parsing an object at column 0"
    );
    let array = folder.complaint("array.json");
    assert!(array.contains("line 1 is no JSON object: invalid type: sequence"), "{array}");
    assert_eq!(
        folder.complaint("number.jsonl"),
        "DIR/number.jsonl line 1: field \"text\" is a number, not a text"
    );
    assert!(folder.complaint("two.jsonl").contains("trailing characters at column"));
    assert_eq!(folder.read("nulls.jsonl"), ["a"]);
    let options = ReadOptions { field: "content".to_owned(), ..ReadOptions::default() };
    let error = folder.read_with("field.jsonl", &options).unwrap_err().to_string();
    assert!(error.ends_with("line 1 has no field \"content\"; it has text"), "{error}");
}

#[test]
fn files_that_are_not_there_or_damaged_are_named() {
    let cut_short = &gzip(&b"some text ".repeat(100))[..30];
    let folder = Folder::with(&[
        ("empty.txt", b""),
        ("bare/.keep", b"x"),
        ("cut.txt.gz", cut_short),
        ("no.txt.zst", b"this is not zstd"),
        ("shards/manifest.json", b"{}"),
        ("file.txt", b"text"),
    ]);
    assert!(folder.complaint("missing.txt").starts_with("DIR/missing.txt does not exist; give"));
    assert!(folder.complaint("empty.txt").starts_with("DIR/empty.txt is empty"));
    assert!(folder.complaint("bare").starts_with("DIR/bare holds no file with text"));
    assert!(folder.complaint("cut.txt.gz").starts_with("DIR/cut.txt.gz cannot be decompressed"));
    assert!(folder.complaint("no.txt.zst").starts_with("DIR/no.txt.zst cannot be decompressed"));
    assert!(folder.complaint("shards").starts_with("DIR/shards holds shards"));
    assert_eq!(
        folder.complaint("file.txt/inner"),
        "cannot read DIR/file.txt/inner: not a directory"
    );
}

proptest! {
    #[test]
    fn a_cut_leaves_a_character_whole_and_something_on_both_sides(
        text in "([a-z]{1,9}[ \n]|é|日|🙂){2,400}", limit in 1_usize..200,
    ) {
        prop_assume!(text.len() > limit);
        let place = cut(&text, limit);
        prop_assert!(text.is_char_boundary(place) && place > 0);
        prop_assert!(place <= limit || text[..place].chars().count() == 1);
    }
}
