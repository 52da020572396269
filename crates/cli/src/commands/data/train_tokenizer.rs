//! `lockstep data train-tokenizer`: trains a byte-level BPE tokenizer on a corpus.

use super::corpus_args::CorpusArguments;
use super::progress::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_config::units::Bytes;
use lockstep_data::tokenizer::{TrainOptions, train};
use lockstep_platform::{FileKind, World};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Train a byte-level BPE tokenizer on a corpus
#[derive(clap::Args)]
#[command(after_help = "\
The file is a tokenizer.json for Hugging Face tokenizers. Its first token is <|endoftext|>, which
ends a document; the 256 bytes are tokens too, so every text can be encoded. A large corpus is
sampled evenly and deterministically.

Examples:
  lockstep data train-tokenizer bundled --vocab 4096 --out tokenizer.json
  lockstep data train-tokenizer 'texts/**/*.jsonl.zst' --field content --vocab 32000 --out t.json
  lockstep train --set data.source=texts --set data.tokenizer=t.json --set model.vocab=32000")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// Vocabulary size
    #[arg(long)]
    vocab: usize,
    /// File to write; it must not exist
    #[arg(long, default_value = "tokenizer.json")]
    out: PathBuf,
    /// Approximate size of the training sample
    #[arg(long, default_value = "256MiB")]
    sample: Bytes,
    /// Add the sentinel tokens of fill-in-the-middle (data.fim_rate)
    #[arg(long)]
    fim: bool,
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
    let options = TrainOptions {
        vocab: arguments.vocab,
        sample_bytes: arguments.sample.0,
        has_sentinels: arguments.fim,
    };
    let start = world.clock().now();
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("training", &gauge, arguments.json, world)?;
    let trained = train(documents, options, &mut |progress| {
        gauge.set(progress.read_bytes, progress.total_bytes, progress.sample_bytes);
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
    let (out, sample) = (out.display(), si_bytes(sample_bytes));
    let mut text = format!("{out}: {vocab} tokens, trained on {sample} in {seconds:.1} s\n");
    if vocab < arguments.vocab {
        let requested = arguments.vocab;
        let _ = writeln!(text, "{requested} requested; the sample has no more pairs to merge");
    }
    output::text(&text)
}
