//! Data placements, tokenizers and evaluation, end to end.

use crate::process::{Finished, Folder, assert_keys};
use lockstep_platform::FileKind;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

const SECRET: &str = "a secret that only the test knows";

/// A recipe that trains quickly; an epoch has a few hundred sequences.
const SMALL: &[&str] = &[
    "--preset",
    "tiny",
    "--quiet",
    "--set",
    "data.source=book.txt",
    "--set",
    "data.validation=0.2",
    "--set",
    "train.eval_batches=1",
];

fn book(folder: &Folder) {
    let lines: Vec<String> =
        (0..400).map(|i| format!("In the beginning {} was the word {}.", i * i, i % 7)).collect();
    folder.write("book.txt", lines.join("\n").as_bytes());
}

fn hashes(report: &Value) -> [&str; 2] {
    ["losses_hash", "weights_hash"].map(|key| report[key].as_str().expect("a hash"))
}

/// A data server in the folder, ended with the test.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = folder.command(&["data-server"]);
        command.args(SMALL).args(arguments).args(["--listen", "127.0.0.1:0"]);
        command.env("LOCKSTEP_SECRET", SECRET).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
        let addr = line.strip_prefix("listening on ").and_then(|rest| rest.split(": ").next());
        let addr = addr.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, addr }
    }

    /// Trains with this server.
    fn train(&self, folder: &Folder, secret: &str, arguments: &[&str]) -> Finished {
        let server = format!("data.server={}", self.addr);
        let mut command = folder.command(&["train", "--json"]);
        command.args(SMALL).args(["--set", "data.placement=served", "--set", &server]);
        command.args(arguments).env("LOCKSTEP_SECRET", secret);
        Finished::new(command.output().expect("the binary starts"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn served_batches_are_bit_identical_to_a_shared_corpus() {
    let folder = Folder::new();
    book(&folder);
    // More than one epoch.
    let steps = ["--set", "train.steps=60", "--set", "data.last_batch=pad"];
    let shared = folder.json(&[&["train", "--json"], SMALL, &steps].concat());
    let server = Server::start(&folder, &steps);
    for workers in ["1", "3"] {
        let workers = format!("run.workers={workers}");
        let served = server.train(&folder, SECRET, &[&steps[..], &["--set", &workers]].concat());
        assert_eq!(served.code, Some(0), "{}", served.stderr);
        let served: Value = serde_json::from_str(&served.stdout).expect("figures");
        assert_eq!(hashes(&served), hashes(&shared), "{workers}");
        assert_eq!(served["validation_loss"], shared["validation_loss"]);
        assert_eq!(served["recipe_hash"], shared["recipe_hash"]);
        assert_eq!(served["baseline_loss"], shared["baseline_loss"]);
    }
}

#[test]
fn a_server_refuses_other_secrets_and_recipes_and_its_failure_ends_the_run() {
    let folder = Folder::new();
    book(&folder);
    let mut server = Server::start(&folder, &[]);
    let refused = server.train(&folder, "another secret of the test", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("it has another LOCKSTEP_SECRET"), "{}", refused.stderr);
    let refused = server.train(&folder, SECRET, &["--set", "train.seed=9"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("it has train.seed = 9, the server train.seed = 1"));
    let refused = server.train(&folder, "short", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("needs a shared secret"), "{}", refused.stderr);

    // Once the run has written some steps, the server is killed.
    let addr = format!("data.server={}", server.addr);
    let mut command = folder.command(&["train"]);
    command.args(SMALL).args(["--set", "data.placement=served", "--set", &addr]);
    command.args(["--set", "train.steps=1000000", "--set", "train.eval_every=0"]);
    command.args(["--set", "run.dir=long", "--set", "run.workers=2", "--set", "run.deadline=5"]);
    command.env("LOCKSTEP_SECRET", SECRET).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary starts");
    let world = lockstep_platform::real();
    let events = folder.path().join("long/events.jsonl");
    let has_steps = || match world.files().metadata(&events) {
        Some(FileKind::File { bytes }) => bytes > 2_000,
        _ => false,
    };
    while !has_steps() {
        world.clock().sleep(Duration::from_millis(20));
    }
    server.child.kill().expect("it was alive");
    let ended = Finished::new(child.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let expected = format!("the data server {} failed", server.addr);
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
}

#[test]
fn a_model_is_evaluated_on_its_validation_set_and_on_any_text() {
    let folder = Folder::new();
    book(&folder);
    folder.write("more/a.txt", b"In the beginning 4 was the word 2.\nIn the beginning.");
    folder.write("more/b.jsonl", b"{\"text\": \"was the word\"}\n");
    let steps = ["--set", "train.steps=12", "--set", "run.dir=run"];
    folder.succeed(&[&["train", "--json"], SMALL, &steps].concat());

    let held_out = folder.json(&["eval", "run", "--json"]);
    assert_keys(
        &held_out,
        "loss perplexity bits_per_byte num_tokens num_targets num_bytes texts stride context model \
         tokens_per_second",
    );
    let number = |report: &Value, key: &str| report[key].as_f64().expect("a number");
    let (loss, bits) = (number(&held_out, "loss"), number(&held_out, "bits_per_byte"));
    assert!((loss.exp() / number(&held_out, "perplexity") - 1.0).abs() < 1e-9);
    assert!((loss / std::f64::consts::LN_2 - bits).abs() < 1e-9, "a byte is a token");

    let whole = folder.json(&["eval", "run", "--json", "--data", "book.txt"]);
    let size = folder.read("book.txt").len() as f64;
    assert!((number(&whole, "num_tokens") - size).abs() < 0.5);
    let closer = ["eval", "run", "--json", "--data", "book.txt", "--stride", "8"];
    let closer = folder.json(&closer);
    assert_eq!(closer["num_targets"], whole["num_targets"], "each token is predicted once");
    assert_ne!(closer["loss"], whole["loss"], "and with a longer context");
    let several = folder.json(&["eval", "run", "--json", "--data", "more", "book.txt"]);
    assert_eq!(several["texts"].as_array().map(Vec::len), Some(2));
    let sum: f64 =
        several["texts"].as_array().expect("two").iter().map(|t| number(t, "nats")).sum();
    assert!((sum / number(&several, "num_targets") - number(&several, "loss")).abs() < 1e-9);

    // A Hugging Face folder with the same weights has the same loss.
    folder.succeed(&["convert", "run", "--to", "huggingface", "hf"]);
    let exported = folder.json(&["eval", "hf", "--json", "--data", "book.txt"]);
    assert_eq!(exported["loss"], whole["loss"]);

    for (arguments, expected) in [
        (&["eval", "hf"][..], "has no validation set; give --data FILE"),
        (&["eval", "run", "--data", "gone.txt"], "gone.txt does not exist"),
        (&["eval", "run", "--data", "book.txt", "--stride", "0"], "--stride 0 must be from 1 to"),
        (&["eval", "nowhere"], "nowhere does not exist"),
    ] {
        let finished = folder.run(arguments);
        assert_eq!(finished.code, Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

/// A tokenizer with eight tokens.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[
    {"id":0,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,
    "normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},
    "post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"<|endoftext|>":0,
    "[UNK]":1,"In":2,"the":3,"beginning":4,"was":5,"word":6,".":7},"unk_token":"[UNK]"}}"#;

#[test]
fn a_run_keeps_its_tokenizer_and_generates_without_its_corpus() {
    let folder = Folder::new();
    book(&folder);
    folder.write("words/tokenizer.json", TOKENIZER.as_bytes());
    let sets = ["--set", "data.tokenizer=words", "--set", "train.steps=12"];
    let few = ["--set", "model.vocab=7"];
    let refused = folder.run(&[&["train"], SMALL, &sets, &few].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("model.vocab = 7 is below the 8 tokens of tokenizer"),
        "{}",
        refused.stderr
    );
    let enough = ["--set", "model.vocab=16", "--set", "run.dir=run"];
    let report = folder.json(&[&["train", "--json"], SMALL, &sets, &enough].concat());
    assert_eq!(report["baseline"], "token bigrams");
    for gone in ["book.txt", "words/tokenizer.json"] {
        let files = lockstep_platform::real();
        files.files().remove_file(&folder.path().join(gone)).expect("it was there");
    }
    let text = folder.json(&["generate", "run", "--json", "--tokens", "20", "--prompt", "In the"]);
    let generated: Vec<_> = text["text"].as_str().expect("a text").split_whitespace().collect();
    let is_known = |word: &&str| TOKENIZER.contains(&format!("\"{word}\":"));
    assert!(!generated.is_empty() && generated.iter().all(is_known), "{generated:?}");
    folder.write("other.txt", b"In the beginning was the word. In the word was the beginning.");
    let evaluated = folder.json(&["eval", "run", "--json", "--data", "other.txt"]);
    assert_eq!(evaluated["num_tokens"], 15, "words, full stops and the end of the document");
    assert_eq!(evaluated["num_bytes"], 61 - 2, "all but the first word");
}

#[test]
fn local_data_placement_is_announced() {
    let folder = Folder::new();
    for rank in 0..2 {
        folder.write(&format!("own-{rank}.txt"), "in the beginning ".repeat(300).as_bytes());
    }
    let finished = folder.succeed(&[
        "train",
        "--preset",
        "tiny",
        "--json",
        "--set",
        "train.steps=2",
        "--set",
        "data.source=own-{rank}.txt",
        "--set",
        "data.placement=local",
        "--set",
        "run.workers=2",
    ]);
    let line = "data.placement = local: each worker trains on its own data";
    assert!(finished.stderr.contains(line), "{}", finished.stderr);
    let missing = folder.run(&[
        "train",
        "--preset",
        "tiny",
        "--set",
        "data.source=own-{rank}.txt",
        "--set",
        "data.placement=local",
        "--set",
        "run.workers=3",
    ]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("own-2.txt does not exist"), "{}", missing.stderr);
}
