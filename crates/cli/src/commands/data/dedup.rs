//! `lockstep data dedup`: writes a corpus without repeated documents.

use super::corpus_args::CorpusArguments;
use super::progress::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_config::units::Bytes;
use lockstep_data::dedup::{BandShape, DedupOptions, DedupProgress, SimilarityOptions, dedup};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Remove repeated documents: exact copies, and near-duplicates with --similar
#[derive(clap::Args)]
#[command(after_help = "\
Copies are equal up to case and white space. With --similar, documents of a similar set of shingles
(runs of words) are removed too, by MinHash signatures and banding: --threshold is their Jaccard
similarity. The first of several is kept, in the order of the corpus. Memory grows with the kept
documents, 16 bytes each and with --similar 8 bytes for each band, and never exceeds --memory.

Examples:
  lockstep data dedup 'texts/*.jsonl' --out unique.jsonl
  lockstep data dedup 'texts/*.parquet' --similar --threshold 0.8 --memory 4GiB --out out.jsonl")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// JSON Lines file to write; it must not exist
    #[arg(long)]
    out: PathBuf,
    /// Remove near-duplicates too
    #[arg(long)]
    similar: bool,
    /// Jaccard similarity from which documents are near-duplicates
    #[arg(long, default_value = "0.7", requires = "similar")]
    threshold: f64,
    /// Hashes in a signature
    #[arg(long, default_value = "256", requires = "similar")]
    permutations: usize,
    /// Words in a shingle
    #[arg(long, default_value = "5", requires = "similar")]
    shingle: usize,
    /// Seed of the hashes
    #[arg(long, default_value = "1", requires = "similar")]
    seed: u64,
    /// Largest memory of the hashes
    #[arg(long, default_value = "1GiB")]
    memory: Bytes,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    num_documents: u64,
    num_kept: u64,
    num_exact: u64,
    num_similar: u64,
    text_bytes: u64,
    kept_bytes: u64,
    /// Memory of the hashes.
    memory_bytes: u64,
    /// Bands and rows of the signatures; null without --similar.
    bands: Option<usize>,
    rows: Option<usize>,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let similar = arguments.similar.then(|| similarity_options(arguments)).transpose()?;
    let options = DedupOptions {
        similar,
        memory_bytes: arguments.memory.0,
        field: arguments.corpus.field().to_owned(),
    };
    let documents = arguments.corpus.open(world)?;
    let start = world.clock().now();
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("comparing", &gauge, arguments.json, world)?;
    let found = dedup(documents, &arguments.out, &options, world, &mut |progress| {
        gauge.set(progress.read_bytes, progress.total_bytes, progress.text_bytes);
    });
    drop(meter);
    let found = found?;
    let DedupProgress { num_documents, num_exact, num_similar, .. } = found;
    let DedupProgress { text_bytes, kept_bytes, memory_bytes, .. } = found;
    let shape = similar.map(|similar| similar.shape);
    let report = Report {
        out: arguments.out.clone(),
        num_documents,
        num_kept: num_documents - num_exact - num_similar,
        num_exact,
        num_similar,
        text_bytes,
        kept_bytes,
        memory_bytes,
        bands: shape.map(|shape| shape.bands),
        rows: shape.map(|shape| shape.rows),
        seconds: world.clock().since(start).as_secs_f64(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report, shape)) }
}

fn similarity_options(arguments: &Arguments) -> Result<SimilarityOptions, Failure> {
    let &Arguments { threshold, permutations, shingle, seed, .. } = arguments;
    if !(threshold > 0.0 && threshold < 1.0) {
        return Err(Failure::user(format!(
            "--threshold {threshold} is not between 0 and 1; try 0.7"
        )));
    }
    if !(2..=4096).contains(&permutations) {
        let line = format!("--permutations {permutations} is not from 2 to 4096; try 256");
        return Err(Failure::user(line));
    }
    if !(1..=1000).contains(&shingle) {
        return Err(Failure::user(format!("--shingle {shingle} is not from 1 to 1000; try 5")));
    }
    let shape = BandShape::best(threshold, permutations);
    Ok(SimilarityOptions { num_permutations: permutations, shape, shingle_terms: shingle, seed })
}

fn render(report: &Report, shape: Option<BandShape>) -> String {
    let Report { num_documents, num_kept, num_exact, num_similar, .. } = report;
    let mut text = format!("{}: {num_kept} of {num_documents} documents\n", report.out.display());
    let _ = writeln!(text, "removed {num_exact} exact copies and {num_similar} near-duplicates");
    let (kept, all) = (si_bytes(report.kept_bytes), si_bytes(report.text_bytes));
    let _ = writeln!(text, "{kept} of {all} of text, in {:.1} s", report.seconds);
    let _ = writeln!(text, "memory of the hashes {}", Bytes(report.memory_bytes));
    if let Some(shape) = shape {
        let BandShape { bands, rows } = shape;
        let percent = |similarity| 100.0 * shape.probability(similarity);
        let [half, most, nearly] = [0.5, 0.7, 0.9].map(percent);
        let _ = writeln!(
            text,
            "{bands} bands of {rows} hashes find pairs of similarity 0.5, 0.7 and 0.9 with a \
             probability of {half:.1} %, {most:.1} % and {nearly:.1} %"
        );
    }
    text
}
