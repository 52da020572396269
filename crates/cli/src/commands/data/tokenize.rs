//! `lockstep data tokenize`: a corpus as shards of tokens.

use super::corpus_args::CorpusArguments;
use super::meter::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use lockstep_config::units::Bytes;
use lockstep_data::shards::{BuildOptions, Manifest, ShardSet, WriterOptions, build, crate_alone};
use lockstep_data::{EndOfDocument, Tokenizer};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Text on which the `tokenizers` crate is measured alone.
const SAMPLE_BYTES: usize = 32 << 20;

/// Write a corpus as shards of tokens, which training reads from any number of workers
#[derive(clap::Args)]
#[command(after_help = "\
The folder holds the tokens, where documents end, a copy of the tokenizer, and a manifest with
checksums. It does not depend on --threads, appears only when it is complete, and is never written
over another. Memory stays below 500 MB, whatever the corpus.

Examples:
  lockstep data tokenize bundled --tokenizer tokenizer.json --out shards
  lockstep data tokenize 'texts/*.parquet' --field content --tokenizer gpt2 --out shards --compare
  lockstep train --set data.source=shards --set model.vocab=4096")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// byte, a tokenizer.json, or a folder that holds one
    #[arg(long)]
    tokenizer: String,
    /// The folder to write; it must be new or empty
    #[arg(long)]
    out: PathBuf,
    /// What stands after each document: auto (the tokenizer's own), none, or a token
    #[arg(long, default_value = "auto")]
    end_of_document: String,
    /// Size of a shard's tokens; documents are never cut
    #[arg(long, default_value = "256MiB")]
    shard_size: Bytes,
    /// Threads that encode; without it, as many as there are cores
    #[arg(long)]
    threads: Option<usize>,
    /// Check the checksums of what was written
    #[arg(long)]
    check: bool,
    /// Measure the tokenizers crate alone too, on the corpus's first 32 MiB, with as many threads
    #[arg(long)]
    compare: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    num_documents: u64,
    num_tokens: u64,
    num_bytes: u64,
    num_shards: usize,
    token_bytes: usize,
    vocab: usize,
    end_of_document: Option<u32>,
    threads: usize,
    seconds: f64,
    bytes_per_second: f64,
    /// Of the `tokenizers` crate on a sample in memory; null unless compared.
    crate_bytes_per_second: Option<f64>,
    peak_rss_bytes: u64,
    fingerprint: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let num_threads = arguments.threads.unwrap_or_else(|| world.threads().available());
    if num_threads == 0 {
        return Err(Failure::user("--threads 0 encodes nothing; try 1"));
    }
    if arguments.shard_size.0 == 0 {
        return Err(Failure::user("--shard-size 0 holds nothing; try 256MiB"));
    }
    let end: EndOfDocument = arguments.end_of_document.parse().unwrap_or_default();
    let tokenizer = Tokenizer::open(&arguments.tokenizer, world.files())?;
    let tokenizer = tokenizer.with_end_of_document(&end)?;
    let documents = arguments.corpus.open(world)?;
    let writer = WriterOptions { shard_bytes: arguments.shard_size.0 };
    let options = BuildOptions { num_threads, writer };
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("tokenizing", &gauge, arguments.json, world)?;
    let built = build(documents, &tokenizer, &arguments.out, options, world, &mut |told| {
        gauge.set(told.read_bytes, told.total_bytes, told.text_bytes);
    });
    drop(meter);
    let built = built?;
    let peak_rss_bytes = world.host().peak_rss_bytes();
    let set = ShardSet::open_unchecked(&arguments.out, world.files())?;
    if arguments.check {
        set.verify()?;
    }
    let crate_bytes_per_second = if arguments.compare {
        let documents = arguments.corpus.open(world)?;
        crate_alone(documents, &tokenizer, SAMPLE_BYTES, num_threads, world)?
    } else {
        None
    };
    let Manifest { vocab, token_bytes, num_tokens, num_documents, num_bytes, shards, .. } =
        built.manifest;
    let report = Report {
        out: arguments.out.clone(),
        num_documents,
        num_tokens,
        num_bytes,
        num_shards: shards.len(),
        token_bytes,
        vocab,
        end_of_document: tokenizer.end_of_document(),
        threads: num_threads,
        seconds: built.seconds,
        bytes_per_second: num_bytes as f64 / built.seconds,
        crate_bytes_per_second,
        peak_rss_bytes,
        fingerprint: set.fingerprint(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report, arguments)) }
}

fn render(report: &Report, arguments: &Arguments) -> String {
    let Report { num_documents, num_tokens, num_bytes, num_shards, .. } = report;
    let mut text = format!(
        "{}: {num_documents} documents, {num_tokens} tokens in {num_shards} shards of {} bytes a \
         token\n",
        report.out.display(),
        report.token_bytes
    );
    let per_token = *num_bytes as f64 / *num_tokens as f64;
    let _ = writeln!(
        text,
        "{} of text from {}, {per_token:.2} bytes a token",
        Bytes(*num_bytes),
        arguments.corpus.name()
    );
    let rate = report.bytes_per_second / 1e6;
    let (seconds, threads) = (report.seconds, report.threads);
    let _ = writeln!(text, "{rate:.2} MB/s: {seconds:.1} s with {threads} threads");
    if let Some(alone) = report.crate_bytes_per_second {
        let alone = alone / 1e6;
        let _ =
            writeln!(text, "{alone:.2} MB/s: the tokenizers crate alone, on a sample in memory");
    }
    let _ = writeln!(text, "{} of memory at most", Bytes(report.peak_rss_bytes));
    text
}
