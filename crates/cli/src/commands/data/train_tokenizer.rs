//! `lockstep data train-tokenizer`: a byte-level BPE vocabulary from a corpus.

use super::corpus_args::CorpusArguments;
use super::meter::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use lockstep_config::units::Bytes;
use lockstep_data::tokenizer::{TrainOptions, train};
use lockstep_platform::{FileKind, World};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Learn a byte-level BPE vocabulary from a corpus
#[derive(clap::Args)]
#[command(after_help = "\
The file is a tokenizer.json that every program with Hugging Face tokenizers reads. Its first token
is <|endoftext|>, which ends a document; the 256 bytes are tokens as well, so that every text can be
encoded. Of a large corpus a sample is enough: it is drawn evenly, and always the same.

Examples:
  lockstep data train-tokenizer bundled --vocab 4096 --out tokenizer.json
  lockstep data train-tokenizer 'texts/**/*.jsonl.zst' --field content --vocab 32000 --out t.json
  lockstep train --set data.source=texts --set data.tokenizer=t.json --set model.vocab=32000")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// Tokens of the vocabulary
    #[arg(long)]
    vocab: usize,
    /// The file to write; it must not exist
    #[arg(long, default_value = "tokenizer.json")]
    out: PathBuf,
    /// How much text to learn from, about
    #[arg(long, default_value = "256MiB")]
    sample: Bytes,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    vocab: usize,
    sample_bytes: u64,
    seconds: f64,
    peak_rss_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let out = &arguments.out;
    if world.files().metadata(out).is_some() {
        let out = out.display();
        return Err(Failure::user(format!("{out} exists; give --out another name")));
    }
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| world.files().metadata(folder) != Some(FileKind::Directory)) {
        let out = out.display();
        return Err(Failure::user(format!("cannot write {out}: its folder does not exist")));
    }
    let documents = arguments.corpus.open(world)?;
    let options = TrainOptions { vocab: arguments.vocab, sample_bytes: arguments.sample.0 };
    let start = world.clock().now();
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("learning", &gauge, arguments.json, world)?;
    let trained = train(documents, options, &mut |told| {
        gauge.set(told.read_bytes, told.total_bytes, told.sample_bytes);
    });
    drop(meter);
    let trained = trained?;
    world.files().write_atomic(out, trained.json.as_bytes())?;
    let report = Report {
        out: out.clone(),
        vocab: trained.vocab,
        sample_bytes: trained.sample_bytes,
        seconds: world.clock().since(start).as_secs_f64(),
        peak_rss_bytes: world.host().peak_rss_bytes(),
    };
    if arguments.json {
        return output::json(&report);
    }
    let Report { out, vocab, sample_bytes, seconds, .. } = report;
    let (out, sample) = (out.display(), Bytes(sample_bytes));
    let mut text = format!("{out}: {vocab} tokens, learnt from {sample} in {seconds:.1} s\n");
    if vocab < arguments.vocab {
        let asked = arguments.vocab;
        let _ = writeln!(text, "{asked} were asked for; the text has no more to join");
    }
    output::text(&text)
}
