//! Tests of shards: written, read and damaged.

use std::path::PathBuf;

use lockstep_config::Blame;
use lockstep_platform::{ScratchDir, World};

use super::*;
use crate::documents::{Documents, ReadOptions};
use crate::error::DataError;
use crate::tokenizer::{EndOfDocument, Tokenizer};

struct Folder {
    world: World,
    scratch: ScratchDir,
}

impl Folder {
    fn new() -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "shards").unwrap();
        Self { world, scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        self.world.files().create_dir_all(self.path(name).parent().unwrap()).unwrap();
        self.world.files().write_atomic(&self.path(name), bytes).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        self.world.files().read(&self.path(name)).unwrap()
    }

    fn tokenizer(&self) -> Tokenizer {
        self.write("tokenizer.json", crate::tokenizer::tests::SMALL.as_bytes());
        let path = self.path("tokenizer.json");
        Tokenizer::open(path.to_str().unwrap(), self.world.files()).unwrap()
    }

    /// Three byte documents, two of them in the first shard.
    fn three(&self, name: &str) {
        let options = WriterOptions { shard_bytes: 12 };
        let bytes = Tokenizer::bytes();
        let bytes = bytes.with_end_of_document(&EndOfDocument::Token("\n".into())).unwrap();
        let mut writer =
            ShardWriter::create(&self.path(name), &bytes, options, &self.world).unwrap();
        for document in ["one\n", "two\n", "three\n"] {
            let tokens: Vec<u32> = document.bytes().map(u32::from).collect();
            writer.push(&tokens[..2]).unwrap();
            writer.push(&tokens[2..]).unwrap();
            writer.end_document(tokens.len() as u64 - 1).unwrap();
        }
        writer.finish().unwrap();
    }

    fn open(&self, name: &str) -> Result<ShardSet, DataError> {
        ShardSet::open(&self.path(name), self.world.files())
    }

    fn complaint(&self, name: &str) -> String {
        let error = self.open(name).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        error.to_string().replace(self.scratch.path().to_str().unwrap(), "DIR")
    }

    fn build(
        &self,
        corpus: &str,
        tokenizer: &Tokenizer,
        num_threads: usize,
        shard_bytes: u64,
        target: &str,
    ) -> Result<Built, DataError> {
        let source = if corpus == "bundled" { corpus.into() } else { self.path(corpus) };
        let documents = Documents::open(&source, &ReadOptions::default(), &self.world)?;
        let options = BuildOptions { num_threads, writer: WriterOptions { shard_bytes } };
        let mut last = BuildProgress::default();
        let target = self.path(target);
        let built = build(documents, tokenizer, &target, options, &self.world, &mut |counters| {
            assert!(
                counters.text_bytes >= last.text_bytes && counters.read_bytes >= last.read_bytes
            );
            last = counters;
        })?;
        assert_eq!(
            (last.read_bytes, last.num_tokens),
            (last.total_bytes, built.manifest.num_tokens)
        );
        Ok(built)
    }
}

fn text(set: &ShardSet, range: std::ops::Range<u64>) -> String {
    let mut tokens = vec![0; (range.end - range.start) as usize];
    set.copy(range.start, &mut tokens).unwrap();
    Tokenizer::bytes().decode(&tokens)
}

#[test]
fn written_tokens_are_read_across_shards() {
    let folder = Folder::new();
    folder.three("set");
    let set = folder.open("set").unwrap();
    assert_eq!((set.num_tokens(), set.num_documents(), set.num_bytes()), (14, 3, 11));
    assert_eq!((set.vocab(), set.end_of_document()), (256, Some(10)));
    let tokenizer = set.tokenizer(folder.world.files()).unwrap();
    assert_eq!((tokenizer.is_bytes(), tokenizer.end_of_document()), (true, Some(10)));
    let documents: Vec<String> = (0..3).map(|index| text(&set, set.document(index))).collect();
    assert_eq!(documents, ["one\n", "two\n", "three\n"]);
    assert_eq!(set.manifest().shards.len(), 2, "a shard is full when a document has filled it");
    for start in 0..14 {
        for end in start..=14 {
            assert_eq!(text(&set, start..end), "one\ntwo\nthree\n"[start as usize..end as usize]);
        }
    }
    let mut names: Vec<String> = Vec::new();
    for path in folder.world.files().list(&folder.path("set")).unwrap() {
        names.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    let shards = ["0.documents", "0.tokens", "1.documents", "1.tokens"];
    assert_eq!(names[1..], shards.map(|end| format!("shard-0000{end}")));
    assert_eq!(names[0], "manifest.json");
}

#[test]
fn threads_and_shards_change_nothing_but_the_files() {
    let folder = Folder::new();
    let tokenizer = folder.tokenizer();
    let one = folder.build("bundled", &tokenizer, 1, 1 << 40, "one").unwrap().manifest;
    let two = folder.build("bundled", &tokenizer, 2, 1 << 40, "two").unwrap().manifest;
    let five = folder.build("bundled", &tokenizer, 5, 1 << 18, "five").unwrap().manifest;
    assert_eq!(one, two);
    assert_eq!(folder.read("one/shard-00000.tokens"), folder.read("two/shard-00000.tokens"));
    assert!(five.shards.len() > 4);
    assert_eq!((one.num_tokens, one.num_documents), (five.num_tokens, five.num_documents));

    let (one, five) = (folder.open("one").unwrap(), folder.open("five").unwrap());
    assert_eq!(folder.open("two").unwrap().fingerprint(), one.fingerprint());
    assert_ne!(five.fingerprint(), one.fingerprint());
    let all = |set: &ShardSet| {
        let mut tokens = vec![0; set.num_tokens() as usize];
        set.copy(0, &mut tokens).unwrap();
        tokens
    };
    let tokens = all(&one);
    assert!(tokens == all(&five));
    for index in 0..one.num_documents() {
        assert_eq!(one.document(index), five.document(index));
    }
    // Document by document, the tokens equal the tokenizer's, each with its end token.
    let mut documents = Documents::bundled(&folder.world);
    let (mut chapter, mut expected) = (String::new(), Vec::new());
    while documents.next_document(&mut chapter).unwrap() {
        tokenizer.encode(&chapter, &mut expected).unwrap();
        expected.extend(tokenizer.end_of_document());
    }
    assert!(tokens == expected);
    let saved = five.tokenizer(folder.world.files()).unwrap();
    assert_eq!((saved.blake3(), saved.end_of_document()), (tokenizer.blake3(), Some(0)));
}

#[test]
fn one_long_document_and_a_large_vocabulary_are_written_whole() {
    let folder = Folder::new();
    folder.write("long.txt", "in the beginning ".repeat(50_000).as_bytes());
    let manifest = folder.build("long.txt", &folder.tokenizer(), 2, 1000, "set").unwrap().manifest;
    assert_eq!((manifest.num_documents, manifest.shards.len(), manifest.token_bytes), (1, 1, 2));
    assert_eq!(manifest::token_bytes(1 << 16), 2);
    assert_eq!(manifest::token_bytes((1 << 16) + 1), 4);
}

#[test]
fn a_damaged_folder_is_named_by_its_file() {
    let folder = Folder::new();
    folder.three("set");
    let (tokens, documents) = ("set/shard-00000.tokens", "set/shard-00000.documents");
    let good = [tokens, documents, "set/manifest.json"].map(|name| (name, folder.read(name)));
    let mend = || good.iter().for_each(|(name, bytes)| folder.write(name, bytes));
    let flip = |name: &str, at: usize| {
        let mut bytes = folder.read(name);
        bytes[at] ^= 1;
        folder.write(name, &bytes);
    };

    flip(tokens, 4);
    let line = folder.complaint("set");
    assert!(line.starts_with("DIR/set/shard-00000.tokens is damaged: its BLAKE3 is "), "{line}");
    mend();
    flip(tokens, 5);
    let unchecked = ShardSet::open_unchecked(&folder.path("set"), folder.world.files()).unwrap();
    let error = unchecked.copy(0, &mut [0; 14]).unwrap_err().to_string();
    assert!(error.contains("shard-00000.tokens is damaged: it holds token 357"), "{error}");
    assert!(unchecked.copy(3, &mut [0; 11]).is_ok());
    mend();
    flip(documents, 0);
    flip(documents, 8 + 1);
    assert!(
        folder.complaint("set").contains(".documents is damaged: document 1 ends at token 264")
    );
    mend();
    folder.write(tokens, &good[0].1[..10]);
    assert_eq!(
        folder.complaint("set"),
        "DIR/set/shard-00000.tokens is damaged: it has 10 bytes and the manifest says 16; \
         tokenize the corpus again"
    );
    mend();
    folder.world.files().remove_file(&folder.path(documents)).unwrap();
    assert_eq!(folder.complaint("set"), "cannot read DIR/set/shard-00000.documents: no such file");
    mend();
    assert!(folder.open("set").is_ok());
    assert!(folder.complaint("nowhere").starts_with("DIR/nowhere is no shard folder"));
}

#[test]
fn an_inconsistent_manifest_is_refused() {
    let folder = Folder::new();
    folder.three("set");
    let good = String::from_utf8(folder.read("set/manifest.json")).unwrap();
    let cases = [
        ("\"format\": 1", "\"format\": 2", "it has format 2, not 1"),
        ("\"format\": 1", "\"format\": \"x\"", "invalid type"),
        ("\"token_bytes\": 2", "\"token_bytes\": 4", "token_bytes = 4 where vocab = 256 takes 2"),
        ("\"end_of_document\": 10", "\"end_of_document\": 256", "is not below vocab = 256"),
        ("\"shard-00000.tokens\"", "\"../../etc/passwd\"", "is not the name of a file"),
        ("\"num_tokens\": 14,\n  ", "\"num_tokens\": 15,\n  ", "do not add up"),
        ("\"vocab\": 256", "\"vocab\": 0", "vocab = 0"),
        ("\"num_tokens\": 14", "\"num_tokens\": 18446744073709551615", "do not add up"),
    ];
    for (from, to, message) in cases {
        let bad = good.replace(from, to);
        assert_ne!(bad, good, "{from}");
        folder.write("set/manifest.json", bad.as_bytes());
        let line = folder.complaint("set");
        assert!(line.starts_with("DIR/set/manifest.json cannot be used: "), "{line}");
        assert!(line.contains(message), "{line}");
    }
}

#[test]
fn nothing_is_written_over_and_a_failure_leaves_nothing() {
    let folder = Folder::new();
    folder.write("good.jsonl", b"{\"text\": \"some text\"}\n");
    folder.write("bad/1.jsonl", b"{\"text\": \"some text\"}\n");
    folder.write("bad/2.jsonl", b"{\"text\": 3}\n");
    folder.write("empty.jsonl", b"{\"text\": null}\n");
    folder.write("precious/notes.txt", b"do not lose me");
    let before = folder.world.files().list(folder.scratch.path()).unwrap();
    let bytes = Tokenizer::bytes();
    let refused = |corpus, target, message: &str| {
        let error = folder.build(corpus, &bytes, 1, 100, target).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        assert!(error.to_string().contains(message), "{error}");
    };
    refused("good.jsonl", "precious", "precious is not a new or empty folder");
    refused("good.jsonl", "good.jsonl", "good.jsonl is not a new or empty folder");
    refused("bad", "new", "2.jsonl line 1");
    refused("empty.jsonl", "new", "has no documents with text");
    assert_eq!(folder.world.files().list(folder.scratch.path()).unwrap(), before);

    folder.world.files().create_dir_all(&folder.path("empty folder")).unwrap();
    folder.build("good.jsonl", &bytes, 1, 100, "empty folder").unwrap();
    assert_eq!(folder.open("empty folder").unwrap().num_tokens(), 9);
}

#[test]
fn the_tokenizers_crate_is_benchmarked_on_a_sample() {
    let folder = Folder::new();
    let rate = |tokenizer: &Tokenizer| {
        let documents = Documents::bundled(&folder.world);
        bench_tokenizers_crate(documents, tokenizer, 100_000, 2, &folder.world).unwrap()
    };
    assert!(rate(&folder.tokenizer()).unwrap() > 0.0);
    assert_eq!(rate(&Tokenizer::bytes()), None);
}
