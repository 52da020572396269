//! `lockstep data`: tokenizers and token shards.

use crate::bad_input::refused;
use crate::process::{Folder, assert_keys, soak};
use lockstep_data::documents::Documents;
use lockstep_platform::World;
use std::fmt::Write as _;
use std::io::Write as _;

const VOCABULARY: [&str; 8] =
    ["data", "train-tokenizer", "bundled", "--vocab", "512", "--sample", "300kB", "--json"];

/// A scratch folder with a small tokenizer of the bundled corpus.
fn with_vocabulary() -> Folder {
    let folder = Folder::new();
    let report = folder.json(&VOCABULARY);
    assert_keys(&report, "out vocab sample_bytes seconds peak_rss_bytes");
    assert_eq!(report["vocab"], 512);
    folder
}

fn tokenize<'a>(corpus: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let command =
        ["data", "tokenize", corpus, "--tokenizer", "tokenizer.json", "--out", out, "--json"];
    [&command[..], more].concat()
}

#[test]
fn a_corpus_becomes_shards_that_can_be_inspected_and_checked() {
    let folder = with_vocabulary();
    folder.write("texts/a.jsonl", b"{\"text\": \"In the beginning\"}\n{\"text\": \"Amen\"}\n");
    folder.write("texts/b.txt", "naïve café".as_bytes());
    let one = folder.json(&tokenize("texts", "one", &["--threads", "1", "--check", "--compare"]));
    assert_keys(
        &one,
        "out num_documents num_tokens num_bytes num_shards token_bytes vocab end_of_document \
         threads seconds bytes_per_second crate_bytes_per_second peak_rss_bytes fingerprint",
    );
    assert_eq!((&one["num_documents"], &one["num_bytes"]), (&3.into(), &32.into()));
    assert!(one["crate_bytes_per_second"].as_f64().unwrap() > 0.0);
    let two = folder.json(&tokenize("texts/*", "two", &["--threads", "3"]));
    assert_eq!(one["fingerprint"], two["fingerprint"]);
    assert_eq!(two["crate_bytes_per_second"], serde_json::Value::Null);

    let inspected = folder.json(&["data", "inspect", "one", "--documents", "2", "--json"]);
    assert_keys(&inspected, "folder fingerprint file_bytes manifest documents");
    let texts: Vec<_> = inspected["documents"].as_array().unwrap().iter().collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0]["text"], "In the beginning<|endoftext|>");
    let shown = folder.succeed(&["data", "inspect", "one", "--first", "2"]).stdout;
    assert!(shown.contains("naïve café<|endoftext|>"), "{shown}");

    let checked = folder.json(&["data", "check", "one", "--json"]);
    assert_eq!(checked["verified"], true);
    assert!(folder.succeed(&["data", "check", "one"]).stdout.contains(" verified ("));
}

#[test]
fn separators_and_end_tokens_can_be_set() {
    let folder = Folder::new();
    folder.write("t.txt", b"one\n\ntwo\n\nthree");
    let arguments = ["data", "tokenize", "t.txt", "--tokenizer", "byte", "--out", "s", "--json"];
    let more = ["--separator", "\\n\\n", "--end-of-document", "\n", "--shard-size", "8B"];
    let report = folder.json(&[&arguments[..], &more].concat());
    assert_eq!((&report["num_documents"], &report["num_tokens"]), (&3.into(), &14.into()));
    assert_eq!((&report["num_shards"], &report["end_of_document"]), (&3.into(), &10.into()));
}

#[test]
fn bad_corpora_tokenizers_and_shards_are_refused_in_one_line() {
    let folder = with_vocabulary();
    let latin = include_bytes!("../../../data/golden/latin.parquet");
    folder.write("latin.parquet", latin);
    folder.write("snappy.parquet", include_bytes!("../../../data/golden/snappy.parquet"));
    folder.write("mixed/a.txt", b"good");
    folder.write("mixed/b.txt", b"caf\xe9");
    folder.write("wide.txt", b"\xff\xfea\0");
    folder.write("lines.jsonl", b"{\"content\": \"a\"}\n");
    folder.write("bad.json", b"{}");
    folder.write("precious/notes.txt", b"do not lose me");
    let cases: [(&str, &[&str]); 7] = [
        ("missing", &["missing does not exist"]),
        ("*.csv", &["no file matches *.csv"]),
        ("mixed", &["mixed/b.txt is not UTF-8", "byte 3"]),
        ("wide.txt", &["wide.txt is UTF-16"]),
        ("latin.parquet", &["latin.parquet row 1", "\"text\"", "byte 3"]),
        ("lines.jsonl", &["lines.jsonl line 1", "no field \"text\"", "content"]),
        ("byte", &["byte does not exist"]),
    ];
    for (corpus, parts) in cases {
        refused(&folder, &tokenize(corpus, "out", &[]), parts);
    }
    let column = tokenize("snappy.parquet", "out", &["--field", "content"]);
    refused(&folder, &column, &["snappy.parquet has no column \"content\"", "id, text"]);
    refused(
        &folder,
        &tokenize("mixed/a.txt", "precious", &[]),
        &["precious is not a new or empty"],
    );
    let end = tokenize("mixed/a.txt", "out", &["--end-of-document", "</s>"]);
    refused(&folder, &end, &["\"</s>\" is no token", "<|endoftext|>"]);
    for tokenizer in ["nothing.json", "bad.json", "mixed"] {
        let command = ["data", "tokenize", "mixed/a.txt", "--out", "out", "--tokenizer", tokenizer];
        refused(&folder, &command, &[tokenizer]);
    }
    refused(&folder, &VOCABULARY, &["tokenizer.json exists"]);
    let tiny = ["data", "train-tokenizer", "bundled", "--vocab", "9", "--out", "t.json"];
    refused(&folder, &tiny, &["cannot have 9 tokens", "257"]);
    let nowhere = ["data", "train-tokenizer", "bundled", "--vocab", "300", "--out", "no/t.json"];
    refused(&folder, &nowhere, &["cannot write no/t.json: its folder does not exist"]);
    refused(&folder, &["data", "inspect", "mixed"], &["mixed is no shard folder"]);

    folder.succeed(&tokenize("mixed/a.txt", "shards", &[]));
    refused(&folder, &tokenize("shards", "out", &[]), &["shards holds shards"]);
    refused(
        &folder,
        &["data", "inspect", "shards", "--first", "1"],
        &["--first 1", "the number of documents"],
    );
    let mut bytes = folder.read("shards/shard-00000.tokens");
    bytes[0] ^= 1;
    folder.write("shards/shard-00000.tokens", &bytes);
    refused(&folder, &["data", "check", "shards"], &["shard-00000.tokens is damaged", "BLAKE3"]);
    folder.write("shards/shard-00000.tokens", &bytes[1..]);
    refused(&folder, &["data", "check", "shards"], &["shard-00000.tokens is damaged", "bytes"]);
}

/// Writes about this much text, half as JSON Lines and half as plain text: chapters of the bundled
/// corpus, each with a unique line.
fn write_corpus(folder: &Folder, num_bytes: u64, world: &World) {
    let path = |name: &str| folder.path().join(name);
    world.files().create_dir_all(&path("large")).expect("folders can be made");
    let open = |name: &str| {
        let file = world.files().append(&path(name)).expect("files can be made");
        std::io::BufWriter::with_capacity(1 << 20, file)
    };
    let (mut lines, mut plain) = (open("large/a.jsonl"), open("large/b.txt"));
    let (mut written, mut number, mut text) = (0, 0_u64, String::new());
    while written < num_bytes {
        let mut documents = Documents::bundled(world);
        while written < num_bytes && documents.next_document(&mut text).expect("it is bundled") {
            number += 1;
            let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let _ = writeln!(text, "\nVerily {word:x}, said the {number}th, {word} times.");
            if number.is_multiple_of(2) {
                let line = serde_json::json!({ "id": number, "text": text });
                writeln!(lines, "{line}").expect("the disk has room");
            } else {
                plain.write_all(text.as_bytes()).expect("the disk has room");
            }
            written += text.len() as u64;
        }
    }
    lines.flush().and_then(|()| plain.flush()).expect("the disk has room");
}

/// A gigabyte with `LOCKSTEP_SOAK=1`, otherwise two megabytes, in the same memory bound.
#[test]
fn a_large_corpus_is_tokenised_in_bounded_memory() {
    const LIMIT_BYTES: u64 = 500_000_000;
    let world = lockstep_platform::real();
    let is_long = soak();
    let num_bytes = if is_long { 1_000_000_000 } else { 2_000_000 };
    let folder = with_vocabulary();
    if is_long {
        world.files().remove_file(&folder.path().join("tokenizer.json")).expect("it is there");
        let vocabulary = ["data", "train-tokenizer", "bundled", "--vocab", "16384", "--json"];
        folder.json(&vocabulary);
    }
    write_corpus(&folder, num_bytes, &world);
    let report = folder.json(&tokenize("large", "shards", &["--compare", "--shard-size", "64MiB"]));
    let number = |key: &str| report[key].as_f64().expect("a number");
    assert!(number("num_bytes") >= num_bytes as f64);
    assert!(number("peak_rss_bytes") < LIMIT_BYTES as f64, "{report}");
    println!(
        "{:.2} GB: {:.2} MB/s with {} threads, the crate alone {:.2} MB/s; {:.0} MB of memory",
        number("num_bytes") / 1e9,
        number("bytes_per_second") / 1e6,
        report["threads"],
        number("crate_bytes_per_second") / 1e6,
        number("peak_rss_bytes") / 1e6,
    );
    folder.json(&["data", "check", "shards", "--json"]);
}
